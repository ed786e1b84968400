"""Which buffers of a model a checkpoint holds, once or for each rank, and whether its numbers are finite."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .storage import HashedFile

OF_LAYERS = ("running_mean", "running_var", "num_batches_tracked")  # of torch: their shapes stay


def places_of_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name of each persistent buffer, its module and its name there."""
    for prefix, module in model.named_modules():
        for own in module._buffers:
            if own not in module._non_persistent_buffers_set:
                yield f"{prefix}.{own}" if prefix else own, module, own


def buffers_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Return the persistent buffers by name: running statistics of torch's layers, and others, some yet to come."""
    statistics: dict[str, Tensor] = {}
    others: dict[str, Tensor | None] = {}
    for name, module, own in places_of_buffers(model):
        buffer = module._buffers[own]
        if not (hasattr(module, "track_running_stats") and own in OF_LAYERS):
            others[name] = buffer
        elif buffer is not None:
            statistics[name] = buffer
    return statistics, others


def running_buffers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return where the buffers are that training changes, by their names or by what their layer says of itself."""
    return [
        (module, own)
        for _, module, own in places_of_buffers(model)
        if getattr(module, "track_running_stats", False) or own.startswith(("running_", "num_batches_tracked"))
    ]


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
    """Set a buffer to a value of any shape; None removes it."""
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


def largest_values(model: nn.Module) -> dict[str, float]:
    """Return the largest absolute value of each parameter and persistent buffer that has one; NaN if it has NaN.

    It takes no copy and does not overflow. float8 has none, nor have other layouts.
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
    return dict(zip(tensors, largest.tolist(), strict=True))


def ruined(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return what is worse than before: inf than what was finite, and NaN than a mask of -inf."""

    def badness(value: float) -> int:
        return 2 * math.isnan(value) + math.isinf(value)

    return [name for name, was in before.items() if badness(now.get(name, 0.0)) > badness(was)]
