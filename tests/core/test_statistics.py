"""A bad step leaves BatchNorm's running statistics as they were, in few kernels whatever the number of layers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import Package

LAYERS = 53  # of ResNet-50


class Kernels(TorchDispatchMode):
    """Notes the operations that start a kernel, all but views, and the types of the tensors in their lists."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, set[torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            lists = [each for each in args if isinstance(each, list)]
            self.calls.append((str(func), {tensor.dtype for each in lists for tensor in each}))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def update(package: Package) -> Any:
    return package("runtime.update")


def test_a_step_on_a_gpu_takes_few_kernels_to_keep_them(update: Any) -> None:
    statistics = update.Statistics(nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(LAYERS))).to("meta"))
    bad = torch.empty((), dtype=torch.bool, device="meta")
    with Kernels() as kernels:
        statistics.restore_if(bad)
    assert len(kernels.calls) <= 8, "a where and a copy for each of three buffers would be 318"
    assert all(len(dtypes) <= 1 for _, dtypes in kernels.calls), "a list of several types is copied one by one"


def test_a_buffer_that_a_layer_puts_in_the_place_of_its_own_is_kept_too(update: Any) -> None:
    layer: Any = nn.Module()
    layer.register_buffer("running_level", torch.ones(2))
    statistics = update.Statistics(layer)
    layer.running_level = layer.running_level + 1
    statistics.keep()
    layer.running_level = layer.running_level * torch.nan
    statistics.restore_if(torch.tensor(True))
    assert layer.running_level.tolist() == [2, 2]
    layer.running_level = torch.zeros(3)  # has grown: from here on
    statistics.keep()
    layer.running_level = layer.running_level + torch.nan
    statistics.restore_if(torch.tensor(True))
    assert layer.running_level.tolist() == [0, 0, 0]


def test_layers_of_the_owner_are_kept_too(update: Any) -> None:
    """By the name of a buffer, or by what the layer says of itself; a mask beside them stays as it is."""
    named, saying = nn.Module(), nn.Module()
    named.register_buffer("running_level", torch.zeros(2))
    named.register_buffer("mask", torch.zeros(2))
    saying.register_buffer("level", torch.zeros(2))
    saying.track_running_stats = True  # type: ignore[assignment]
    model = nn.ModuleList([named, saying])
    statistics = update.Statistics(model)
    for buffer in model.buffers():
        buffer.fill_(torch.nan)
    statistics.restore_if(torch.tensor(True))
    assert [buffer.isnan().any().item() for buffer in model.buffers()] == [False, True, False]
