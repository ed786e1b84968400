"""Stands in for apex.amp where there is no GPU: the calls that it has, on CPU tensors, with a constant loss scale.

It refuses what apex refuses or silently gets wrong, and writes down each call. What it shares with apex, because
programs depend on it:

- scale_loss() without delay_unscale sets gradients aside that are there already, and adds them after the backward pass.
  DistributedDataParallel does not see them then. With delay_unscale they stay, scaled, for the next backward pass.
- Under O2 the optimizer steps float32 masters of float16 weights. They replace the weights in optimizer.param_groups
  when they are first needed: by a backward pass or by zero_grad(), not by initialize().
- Under O2 zero_grad() detaches gradients in place, which torch refuses for gradients that are views of DDP's buckets.
- state_dict() holds the scale and how long it has been good, and load_state_dict() takes nothing else.
"""

import gc
import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Handle:
    """What initialize() knows and the other calls need."""

    def __init__(self, optimizer: Optimizer, opt_level: str) -> None:
        self.optimizer = optimizer
        self.with_masters = opt_level == "O2"
        self.halves: list[tuple[nn.Parameter, nn.Parameter]] = []  # float16 weights, each with its float32 master
        self.scale = 1024.0
        self.unskipped = 0
        self.left_scaled = False  # gradients, by a backward pass with delay_unscale

    def make_masters(self) -> None:
        """Put float32 copies in the place of float16 weights, once."""
        if not self.with_masters or self.halves:
            return
        for group in self.optimizer.param_groups:
            for i, weight in enumerate(group["params"]):
                if weight.dtype == torch.float16:
                    master = nn.Parameter(weight.detach().float())
                    group["params"][i] = master
                    if weight in self.optimizer.state:
                        self.optimizer.state[master] = self.optimizer.state.pop(weight)
                    self.halves.append((weight, master))
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # moments get the type of their weight

    def weights(self) -> list[nn.Parameter]:
        """Those that the backward pass leaves gradients at."""
        masters = {master: weight for weight, master in self.halves}
        return [masters.get(each, each) for group in self.optimizer.param_groups for each in group["params"]]

    def unscale(self, set_aside: dict[nn.Parameter, Tensor | None]) -> None:
        """Return the weights that the optimizer steps their true gradients."""
        masters = dict(self.halves)
        for weight in self.weights():
            if weight.grad is None:
                continue
            stepped = masters.get(weight, weight)
            before = set_aside.get(weight) if stepped is weight else stepped.grad
            gradient = weight.grad.float().div_(self.scale)  # in place where it is float32: DDP's bucket keeps it
            stepped.grad = gradient if before is None else gradient.add_(before)
        self.unskipped += 1


handle: Handle | None = None


def current() -> Handle:
    """The handle of initialize(), which must have been called."""
    assert handle is not None, "amp.initialize() comes first"
    return handle


def write_down(call: str, **details: Any) -> None:
    """Append a call to the record of this rank, where the test wants one."""
    if "APEX_CALLS" in os.environ:
        with open(f"{os.environ['APEX_CALLS']}-{os.environ['RANK']}", "a") as file:
            file.write(json.dumps([call, details]) + "\n")


def initialize(models: nn.Module, optimizers: Optimizer, *, opt_level: str = "O1") -> tuple[nn.Module, Optimizer]:
    """Prepare a model and its optimizer for the level."""
    global handle
    assert handle is None, "amp.initialize() comes once"
    assert isinstance(models, nn.Module)
    assert isinstance(optimizers, Optimizer)
    assert opt_level in ("O0", "O1", "O2", "O3")
    assert all(weight.dtype == torch.float32 for weight in models.parameters())
    wrapped = any(issubclass(type(each), DistributedDataParallel) for each in gc.get_objects())
    assert not wrapped, "amp.initialize() comes before DistributedDataParallel"
    handle = Handle(optimizers, opt_level)
    write_down("initialize", opt_level=opt_level)
    if opt_level == "O2":
        cast_model(models)
        patch_zero_grad(handle)
    patch_step(handle)
    return models, optimizers


def cast_model(model: nn.Module) -> None:
    """Compute in float16 but for BatchNorm, take and return float32, and save float32."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.half()
    forward = model.forward
    model.forward = lambda batch: forward(batch.half()).float()
    untyped: Any = model
    untyped.register_state_dict_post_hook(save_as_float32)


def save_as_float32(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """What state_dict() calls at its end."""
    state.update({key: value.float() for key, value in state.items() if value.dtype == torch.float16})


def patch_zero_grad(handle: Handle) -> None:
    """Make zero_grad() see to weights and masters."""

    def zero_grad() -> None:
        handle.make_masters()
        for weight in handle.weights():
            if weight.grad is not None:
                weight.grad.detach_()
                weight.grad.zero_()
        for _, master in handle.halves:
            master.grad = None

    handle.optimizer.zero_grad = zero_grad  # type: ignore[method-assign, assignment]


def patch_step(handle: Handle) -> None:
    """Make step() write down the norm of what it applies, and bring masters back to the weights."""
    step = handle.optimizer.step

    def patched() -> None:
        gradients = [each.grad for group in handle.optimizer.param_groups for each in group["params"]]
        assert all(each is not None for each in gradients), "a weight without gradient"
        write_down("step", norm=nn.utils.get_total_norm(gradients).item(), left_scaled=handle.left_scaled)
        step()
        for weight, master in handle.halves:
            weight.data.copy_(master.data)
            master.grad = None

    handle.optimizer.step = patched  # type: ignore[method-assign, assignment]


@contextmanager
def scale_loss(loss: Tensor, optimizers: Optimizer, *, delay_unscale: bool = False) -> Iterator[Tensor]:
    """Yield the scaled loss for a backward pass, and unscale the gradients afterwards unless that is delayed."""
    handle = current()
    assert isinstance(loss, Tensor)
    assert loss.numel() == 1
    assert loss.requires_grad
    assert optimizers is handle.optimizer
    assert isinstance(delay_unscale, bool)
    write_down("scale_loss", delay_unscale=delay_unscale)
    set_aside: dict[nn.Parameter, Tensor | None] = {}
    if not delay_unscale and not handle.left_scaled:
        handle.make_masters()
        for weight in handle.weights():
            set_aside[weight], weight.grad = weight.grad, None
    yield loss.float() * handle.scale
    if not delay_unscale:
        handle.unscale(set_aside)
    handle.left_scaled = delay_unscale


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """The weights that the optimizer steps."""
    write_down("master_params")
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    """The state of the loss scale."""
    handle = current()
    write_down("state_dict")
    return OrderedDict(loss_scaler0={"loss_scale": handle.scale, "unskipped": handle.unskipped})


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Put back what state_dict() gave."""
    handle = current()
    write_down("load_state_dict", state=state_dict)
    if state_dict.keys() != {"loss_scaler0"}:
        raise RuntimeError(f"unexpected keys: {', '.join(state_dict)}")
    handle.scale = state_dict["loss_scaler0"]["loss_scale"]
    handle.unskipped = state_dict["loss_scaler0"]["unskipped"]
