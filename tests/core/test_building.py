"""A model is built in parts: each rank keeps its rows of each weight, with the values that one process draws."""

import copy
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Package


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
def building(package: Package) -> ModuleType:
    found: ModuleType = package("runtime.building", parallel="fsdp")
    return found


def rows_of(whole: Tensor, rank: int, shards: int) -> Tensor:
    chunks = whole.chunk(shards)
    return chunks[rank] if rank < len(chunks) else whole[:0]


def with_buffer() -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_buffer("initial", model.weight.detach())
    return model


def from_meta() -> nn.Module:
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    model.to_empty(device="cpu")
    nn.init.normal_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def of_one_vector() -> nn.Module:
    model = nn.Linear(4, 4)
    nn.utils.vector_to_parameters(torch.arange(20.0), model.parameters())
    return model


def of_one_tensor() -> nn.Module:
    return nn.ParameterList([nn.Parameter(half) for half in torch.randn(2, 4, 4).unbind()])


def of_numpy() -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight.data = torch.from_numpy(np.random.rand(4, 4).astype(np.float32))
    return model


def lazy() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(4))
    model(torch.zeros(2, 3))
    return model


def seed() -> None:
    torch.manual_seed(3)
    np.random.seed(3)


BUILT: dict[str, Callable[[], nn.Module]] = {
    "copies": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "another dtype": lambda: nn.Linear(4, 4).double(),
    "values of others": lambda: copy.deepcopy(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))),
    "integers and complex numbers": lambda: nn.ParameterList(
        [nn.Parameter(torch.arange(5), requires_grad=False), nn.Parameter(torch.randn(4, dtype=torch.cfloat))]
    ),
    "an orthogonal layer": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "an LSTM": lambda: nn.LSTM(4, 4, num_layers=2),
    **{each.__name__: each for each in (with_buffer, from_meta, of_one_vector, of_one_tensor, of_numpy, lazy)},
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("at_once", [0, 80, 1 << 26])
@pytest.mark.parametrize("name", BUILT)
def test_a_model_may_be_built_in_any_way(
    name: str, at_once: int, building: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "AT_ONCE", at_once)
    for rank in range(2):
        seed()
        whole = BUILT[name]()
        seed()
        model, parts = building.build_in_parts(BUILT[name], rank, 2)
        assert all(weight.is_meta for weight in model.parameters())
        for buffer, expected in zip(model.buffers(), whole.buffers(), strict=True):
            assert torch.equal(buffer, expected)
        for place, weight in whole.named_parameters():
            assert torch.equal(parts[place].rows, rows_of(weight, rank, 2)), place


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
        model, parts = building.build_in_parts(Network, rank, shards)
        assert torch.equal(torch.rand(2), drawn), "it draws as many numbers"
        assert all(weight.is_meta for weight in model.parameters())
        assert model.head.weight is model.embedding.weight
        assert torch.equal(model.norm.running_var, torch.ones(5))
        for name, weight in whole.named_parameters():
            assert torch.equal(parts[name].rows, rows_of(weight, rank, shards)), name


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
        model, parts = building.build_in_parts(build, 1, 2)
    assert "each rank builds the whole model first" in caplog.text
    assert torch.equal(model.norm_of_first, whole.norm_of_first)
    assert torch.equal(parts["embedding.weight"].rows, whole.embedding.weight[5:])
