"""Which buffers of a model a checkpoint holds, once or for each rank, and whether its numbers are finite."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .storage import HashedFile


def buffers_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Return the persistent buffers by name: running statistics, such as BatchNorm's, and others, some yet to come."""
    statistics: dict[str, Tensor] = {}
    others: dict[str, Tensor | None] = {}
    for prefix, module in model.named_modules():
        tracked = getattr(module, "track_running_stats", False)
        for own, buffer in module._buffers.items():
            name = f"{prefix}.{own}" if prefix else own
            if own in module._non_persistent_buffers_set:
                continue
            if not tracked and not own.startswith(("running_", "num_batches_tracked")):
                others[name] = buffer
            elif buffer is not None:
                statistics[name] = buffer
    return statistics, others


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return all that there are, by name."""
    statistics, others = buffers_of(model)
    return statistics | {name: buffer for name, buffer in others.items() if buffer is not None}


def fingerprint(buffer: Tensor | None) -> tuple[str, str]:
    """Return dtype and shape, and a digest: both are equal for equal buffers alone."""
    if buffer is None:
        return "", ""
    with HashedFile(Path(os.devnull)) as nowhere:
        torch.save(buffer.detach().cpu().clone(), nowhere)
    return f"{buffer.dtype} {[*buffer.shape]}", nowhere.sha256()


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of the persistent buffers."""
    return {name: [*buffer.shape] for name, buffer in persistent_buffers(model).items()}


def set_buffer(model: nn.Module, name: str, value: Tensor | None) -> None:
    """Give a buffer a value, whatever its shape; None takes it away."""
    buffer = persistent_buffers(model).get(name)
    if buffer is not None and value is not None and buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        prefix, _, own = name.rpartition(".")
        device = next(model.parameters()).device
        model.get_submodule(prefix).register_buffer(own, None if value is None else value.clone().to(device))


def grow_buffers(model: nn.Module, grown: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Give buffers that have grown their saved values, if they have the shapes here from which they grew."""
    shapes = shapes_of(model)
    for name in [name for name, built in grown.items() if shapes.get(name) == built]:
        set_buffer(model, name, saved[name])


def finite_tensors(model: nn.Module) -> dict[str, bool]:
    """Return by name whether a parameter or persistent buffer is finite; those that cannot be asked are left out.

    The largest absolute value tells, without a copy and without overflow. float8 has none, nor have other layouts.
    """
    tensors = {
        name: tensor.detach()
        for name, tensor in (dict(model.named_parameters()) | persistent_buffers(model)).items()
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.numel()
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.itemsize > 1)
    }
    if not tensors:
        return {}
    largest = torch.stack([*torch._foreach_norm([*tensors.values()], math.inf)])
    return dict(zip(tensors, largest.isfinite().tolist(), strict=True))
