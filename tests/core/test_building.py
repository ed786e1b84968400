"""A model is built in parts: each rank keeps its rows of each weight, with the values that one process draws."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Render
from tests.support.training import module_of


class Network(nn.Module):
    """Has what is easily built wrong: draws that depend on draws, tied weights, weights that are written again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6, padding_idx=1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 12) for _ in range(3))
        self.convolution = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.randn(3) * 2)
        nn.init.trunc_normal_(self.convolution.weight, std=0.3)
        nn.init.orthogonal_(self.convolution.weight)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)


class Reading(Network):
    norm_of_first: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("norm_of_first", self.get_parameter("blocks.0.linear1.weight").norm())


@pytest.fixture(scope="module")
def building(project: Render) -> ModuleType:
    return module_of(project(parallel="fsdp") / "ddp_project" / "runtime" / "building.py")


def rows_of(whole: Tensor, rank: int, shards: int) -> Tensor:
    chunks = whole.chunk(shards)
    return chunks[rank] if rank < len(chunks) else whole[:0]


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("at_once", [0, 2000, 1 << 26])
def test_rows_are_those_of_one_process(
    shards: int, at_once: int, building: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "AT_ONCE", at_once)
    torch.manual_seed(3)
    whole, drawn = Network(), torch.rand(2)
    for rank in range(shards):
        torch.manual_seed(3)
        model, rows = building.build_in_parts(Network, rank, shards)
        assert torch.equal(torch.rand(2), drawn), "it draws as many numbers"
        assert all(weight.is_meta for weight in model.parameters())
        assert model.head.weight is model.embedding.weight
        assert torch.equal(model.norm.running_var, torch.ones(5))
        for name, weight in whole.named_parameters():
            assert torch.equal(rows[name], rows_of(weight, rank, shards)), name


def test_few_weights_are_whole_at_a_time(building: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "AT_ONCE", 3000)
    most, make_room = [0], building.Building.make_room

    def noted(self: object, size: int) -> None:
        make_room(self, size)
        most.append(sum(vars(self)["whole"].values()))

    monkeypatch.setattr(building.Building, "make_room", noted)
    building.build_in_parts(Network, 0, 2)
    assert 0 < max(most) <= 3000 < 4 * sum(weight.numel() for weight in Network().parameters())


def test_a_model_that_reads_its_weights_is_built_whole(
    building: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(building, "AT_ONCE", 0)
    build: Callable[[], Reading] = Reading
    torch.manual_seed(3)
    whole = build()
    torch.manual_seed(3)
    with caplog.at_level("INFO"):
        model, rows = building.build_in_parts(build, 1, 2)
    assert "each rank builds the whole model first" in caplog.text
    assert torch.equal(model.norm_of_first, whole.norm_of_first)
    assert torch.equal(rows["embedding.weight"], whole.embedding.weight[5:])
