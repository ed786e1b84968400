"""A bad step leaves BatchNorm's running statistics as they were, in few kernels whatever the number of layers."""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import of_package

LAYERS = 53  # of ResNet-50
update = of_package("runtime.optimizer_step")


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


def test_a_step_on_a_gpu_takes_few_kernels_to_keep_them(update: Any) -> None:
    statistics = update.BatchNormSnapshot(nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(LAYERS))).to("meta"))
    bad = torch.empty((), dtype=torch.bool, device="meta")
    with Kernels() as kernels:
        statistics.restore_if(bad)
    assert len(kernels.calls) <= 8, "a where and a copy for each of three buffers would be 318"
    assert all(len(dtypes) <= 1 for _, dtypes in kernels.calls), "a list of several types is copied one by one"


def test_buffers_of_the_owner_are_kept_too(update: Any) -> None:
    """By their names or by what the layer says of itself; also one put in the place of another, but no mask."""
    named, saying = nn.Module(), nn.Module()
    for name in ("running_level", "mask"):
        named.register_buffer(name, torch.ones(2))
    saying.register_buffer("level", torch.ones(2))
    saying.track_running_stats = True  # type: ignore[assignment]
    model: Any = nn.ModuleList([named, saying])
    statistics = update.BatchNormSnapshot(model)
    for grown in (torch.ones(2), torch.full((2,), 2.0), torch.zeros(3)):
        named.running_level = grown
        statistics.keep()
        for name, buffer in [*model.named_buffers()]:
            layer, own = name.split(".")
            setattr(model[int(layer)], own, buffer * torch.nan)
        statistics.restore_if(torch.tensor(True))
        assert named.running_level.tolist() == grown.tolist()
        assert saying.get_buffer("level").tolist() == [1, 1]
        assert named.get_buffer("mask").isnan().all()
