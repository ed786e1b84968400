"""Replaces apex.amp without a GPU: the same calls on CPU tensors, with a loss scale that only falls.

It refuses what apex refuses or silently gets wrong. What it shares with apex, because programs depend on it:

- scale_loss() without delay_unscale sets gradients aside that are there already, and adds them after the backward pass.
  DistributedDataParallel does not see them then. With delay_unscale they stay, scaled, for the next backward pass.
- Under O2 the optimizer steps float32 masters of float16 weights. They replace the weights in optimizer.param_groups
  when they are first needed: by a backward pass or by zero_grad(), not by initialize().
- Under O2 zero_grad() detaches gradients in place, which torch refuses for gradients that are views of DDP's buckets.
- After gradients that are not finite, it halves the scale. It replaces optimizer.step() by a function that skips one
  step and restores the real function. Under O2, the masters' gradients have any value then.
- Under O1, Tensor.sum() and Tensor.cpu() make float32 of float64, and float64 cannot be added to float32 or compared
  with it.
- state_dict() holds the scale and how long it has been good, and load_state_dict() takes nothing else.
"""

import gc
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

handle: Any = None  # of initialize()


class Handle:
    """What initialize() knows and the other calls need."""

    def __init__(self, optimizers: list[Optimizer], opt_level: str) -> None:
        self.optimizers = optimizers
        self.with_masters = opt_level == "O2"
        self.halves: list[tuple[nn.Parameter, nn.Parameter]] = []  # float16 weights, each with its float32 master
        self.scale = 1024.0
        self.unskipped = 0
        self.left_scaled = False  # gradients, by a backward pass with delay_unscale

    def make_masters(self) -> None:
        """Put float32 copies in the place of float16 weights, once."""
        if not self.with_masters or self.halves:
            return
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for i, weight in enumerate(group["params"]):
                    if weight.dtype == torch.float16:
                        master = nn.Parameter(weight.detach().float())
                        group["params"][i] = master
                        if weight in optimizer.state:
                            optimizer.state[master] = optimizer.state.pop(weight)
                        self.halves.append((weight, master))
            optimizer.load_state_dict(optimizer.state_dict())  # moments get the type of their weight

    def weights(self) -> list[nn.Parameter]:
        """Those that the backward pass leaves gradients at."""
        masters = {master: weight for weight, master in self.halves}
        return [masters.get(each, each) for optimizer in self.optimizers for each in stepped_by(optimizer)]

    def unscale(self, set_aside: dict[nn.Parameter, Tensor | None]) -> None:
        """Return the weights that the optimizers step their true gradients."""
        masters = dict(self.halves)
        for weight in self.weights():
            if weight.grad is None:
                continue
            stepped = masters.get(weight, weight)
            before = set_aside.get(weight) if stepped is weight else stepped.grad
            gradient = weight.grad.float().div_(self.scale)  # in place where it is float32: DDP's bucket keeps it
            stepped.grad = gradient if before is None else gradient.add_(before)
        self.unskipped += 1

    def overflows(self) -> bool:
        """Whether a gradient is not finite. If so, halve the scale and let each optimizer skip a step."""
        if all(bool(weight.grad.isfinite().all()) for weight in self.weights() if weight.grad is not None):
            return False
        self.scale, self.unskipped = self.scale / 2, 0
        for _, master in self.halves:
            master.grad = torch.full_like(master, float(os.environ["RANK"]))  # of apex's, nobody knows the value
        for optimizer in self.optimizers:
            skip_next_step(optimizer)
        return True


def stepped_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """The weights that an optimizer steps."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def initialize(models: nn.Module, optimizers: list[Optimizer], *, opt_level: str) -> tuple[nn.Module, list[Optimizer]]:
    """Prepare a model and its optimizers for the level."""
    global handle
    assert handle is None, "amp.initialize() comes once"
    assert isinstance(models, nn.Module)
    assert all(isinstance(optimizer, Optimizer) for optimizer in optimizers)
    assert opt_level in ("O1", "O2"), "the others are for apex itself"
    assert all(weight.dtype == torch.float32 for weight in models.parameters())
    wrapped = any(issubclass(type(each), DistributedDataParallel) for each in gc.get_objects())
    assert not wrapped, "amp.initialize() comes before DistributedDataParallel"
    handle = Handle(optimizers, opt_level)
    if opt_level == "O1":
        patch_tensors()
    else:
        cast_model(models)
    for optimizer in optimizers:
        if opt_level == "O2":
            patch_zero_grad(handle, optimizer)
        patch_step(handle, optimizer)
    return models, optimizers


def patch_tensors() -> None:
    """Let sums and copies to the CPU be of float32, and refuse to add float64 to float32."""
    patched: Any = Tensor
    for name in ("sum", "cpu"):
        setattr(patched, name, rounding(getattr(Tensor, name)))
    for name in ("__add__", "__gt__"):
        setattr(patched, name, refusing(getattr(Tensor, name)))


def refusing(method: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    def refuse(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor) and {self.dtype, other.dtype} == {torch.float32, torch.float64}:
            raise NotImplementedError("do not know how to handle these types to promote")
        return method(self, other)

    return refuse


def rounding(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that first makes float32 of float64."""
    return lambda self, *args, **kwargs: method(self.float() if self.dtype == torch.float64 else self, *args, **kwargs)


def cast_model(model: nn.Module) -> None:
    """Compute in float16 but for BatchNorm, take and return float32, and save float32."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.half()
    forward = model.forward
    model.forward = lambda batch: forward(batch.half()).float()

    def save_as_float32(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        state.update({key: value.float() for key, value in state.items() if value.dtype == torch.float16})

    untyped: Any = model
    untyped.register_state_dict_post_hook(save_as_float32)


def patch_zero_grad(handle: Handle, optimizer: Optimizer) -> None:
    """Make zero_grad() see to weights and masters."""
    patched: Any = optimizer

    def zero_grad() -> None:
        handle.make_masters()
        for weight in handle.weights():
            if weight.grad is not None:
                weight.grad.detach_()
                weight.grad.zero_()
        for _, master in handle.halves:
            master.grad = None

    patched.zero_grad = zero_grad


def patch_step(handle: Handle, optimizer: Optimizer) -> None:
    """Make step() write down the norm of what it applies, if that is wanted, and bring masters back to the weights."""
    patched: Any = optimizer
    step = optimizer.step

    def real_step() -> None:
        stepped = stepped_by(optimizer)
        gradients = [each.grad for each in stepped if each.grad is not None]
        assert len(gradients) == len(stepped), "a weight without gradient"
        if "APEX_NORMS" in os.environ:
            with open(f"{os.environ['APEX_NORMS']}-{os.environ['RANK']}", "a") as file:
                print(nn.utils.get_total_norm(gradients).item(), file=file)
        step()
        weights = {master: weight for weight, master in handle.halves}
        for master in weights.keys() & set(stepped):
            weights[master].data.copy_(master.data)
            master.grad = None

    patched.step = real_step


def skip_next_step(optimizer: Optimizer) -> None:
    """Make step() do nothing, once."""
    patched: Any = optimizer
    step = optimizer.step

    def skip_step() -> None:
        patched.step = step

    patched.step = skip_step


@contextmanager
def scale_loss(loss: Tensor, optimizers: list[Optimizer], *, delay_unscale: bool = False) -> Iterator[Tensor]:
    """Yield the scaled loss for a backward pass, and unscale the gradients afterwards unless that is delayed."""
    assert isinstance(loss, Tensor)
    assert loss.numel() == 1
    assert loss.requires_grad
    assert optimizers == handle.optimizers
    assert isinstance(delay_unscale, bool)
    set_aside: dict[nn.Parameter, Tensor | None] = {}
    if not delay_unscale and not handle.left_scaled:
        handle.make_masters()
        for weight in handle.weights():
            set_aside[weight], weight.grad = weight.grad, None
    yield loss.float() * handle.scale
    if not delay_unscale and not handle.overflows():
        handle.unscale(set_aside)
    handle.left_scaled = delay_unscale


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """The weights that the optimizer steps."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    """The state of the loss scale."""
    return OrderedDict(loss_scaler0={"loss_scale": handle.scale, "unskipped": handle.unskipped})


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Put back what state_dict() gave."""
    if state_dict.keys() != {"loss_scaler0"}:
        raise RuntimeError(f"unexpected keys: {', '.join(state_dict)}")
    handle.scale = state_dict["loss_scaler0"]["loss_scale"]
    handle.unskipped = state_dict["loss_scaler0"]["unskipped"]
