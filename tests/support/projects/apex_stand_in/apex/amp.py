"""Stands in for apex.amp at O1 where there is no GPU: its calls, on CPU tensors, with a loss scale that only falls.

It refuses what apex refuses or silently gets wrong. What it shares with apex, because programs depend on it:

- scale_loss() without delay_unscale sets gradients aside that are there already, and adds them after the backward pass.
  DistributedDataParallel does not see them then. With delay_unscale they stay, scaled, for the next backward pass.
- After gradients that are not finite, it halves the scale and replaces optimizer.step() by a function that takes no
  step but puts the real one back, whenever it is called.
- Tensor.sum() and Tensor.cpu() make float32 of float64, and float64 cannot be added to float32 or compared with it.
- state_dict() holds the scale and how long it has been good, and load_state_dict() takes nothing else.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Handle:
    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        self.scale = 1024.0
        self.unskipped = 0
        self.left_scaled = False  # gradients, by a backward pass with delay_unscale

    def weights(self) -> list[nn.Parameter]:
        stepped = [weight for optimizer in self.optimizers for weight in master_params(optimizer)]
        return [weight for weight in stepped if weight.grad is not None]

    def unscale(self, set_aside: dict[nn.Parameter, Tensor | None]) -> None:
        """Return the weights their true gradients."""
        for weight in self.weights():
            assert weight.grad is not None
            weight.grad.div_(self.scale)  # in place: DDP's bucket keeps it
            if (before := set_aside.get(weight)) is not None:
                weight.grad.add_(before)
        self.unskipped += 1

    def overflows(self) -> bool:
        """Whether a gradient is not finite. If so, halve the scale and let each optimizer skip a step."""
        if all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in self.weights()):
            return False
        self.scale, self.unskipped = self.scale / 2, 0
        for optimizer in self.optimizers:
            skip_next_step(optimizer)
        return True


handle: Handle | None = None


def initialize(
    models: nn.Module, optimizers: list[Optimizer], *, opt_level: str = "O1"
) -> tuple[nn.Module, list[Optimizer]]:
    global handle
    assert handle is None, "amp.initialize() comes once"
    assert opt_level == "O1", "the others are for apex itself"
    assert all(weight.dtype == torch.float32 for weight in models.parameters())
    wrapped = any(issubclass(type(each), DistributedDataParallel) for each in gc.get_objects())
    assert not wrapped, "amp.initialize() comes before DistributedDataParallel"
    handle = Handle(optimizers)
    patch_tensors()
    return models, optimizers


def patch_tensors() -> None:
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
    return lambda self, *args, **kwargs: method(self.float() if self.dtype == torch.float64 else self, *args, **kwargs)


def skip_next_step(optimizer: Optimizer) -> None:
    patched: Any = optimizer
    step = optimizer.step

    def skip_step() -> None:
        patched.step = step

    patched.step = skip_step


@contextmanager
def scale_loss(loss: Tensor, optimizers: list[Optimizer], *, delay_unscale: bool = False) -> Iterator[Tensor]:
    assert handle is not None, "amp.initialize() comes first"
    assert loss.requires_grad
    assert optimizers == handle.optimizers
    set_aside: dict[nn.Parameter, Tensor | None] = {}
    if not delay_unscale and not handle.left_scaled:
        for weight in handle.weights():
            set_aside[weight], weight.grad = weight.grad, None
    yield loss.float() * handle.scale
    if not delay_unscale and not handle.overflows():
        handle.unscale(set_aside)
    handle.left_scaled = delay_unscale


def master_params(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    assert handle is not None, "amp.initialize() comes first"
    return {"loss_scaler0": {"loss_scale": handle.scale, "unskipped": handle.unskipped}}


def load_state_dict(state_dict: dict[str, Any]) -> None:
    assert handle is not None, "amp.initialize() comes first"
    if state_dict.keys() != {"loss_scaler0"}:
        raise RuntimeError(f"unexpected keys: {', '.join(state_dict)}")
    handle.scale = state_dict["loss_scaler0"]["loss_scale"]
    handle.unskipped = state_dict["loss_scaler0"]["unskipped"]
