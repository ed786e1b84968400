"""Models and optimizers that are built in unusual ways train with shards as replicas do, and resume bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.core.exact.test_processes import OPTIONS
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.support import reference
from tests.support.forked_runs import Program, owned_by, relative_difference, run_all
from tests.support.ranks import error_in
from tests.support.training import checkpoint, whole_checkpoint
from tools.rewriting import extend

# Each makes the blocks of a network, as an owner's model.py may.
MODEL = f"""
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Network(nn.Module):
    def __init__(self, blocks: Any) -> None:
        super().__init__()
        self.first = nn.Linear({reference.FEATURES}, 8)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(8, {reference.CLASSES})

    def forward(self, rows: Tensor) -> Any:
        hidden = self.first(rows)
        for block in self.blocks:
            for part in block if isinstance(block, nn.ModuleList) else [block]:
                hidden = hidden + part(hidden)
        return self.head(hidden)


class Scaled(nn.Linear):
    _version = 2

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) * self.get_buffer("scale")

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[prefix + "scale"] = 10 * state[prefix + "scale"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


"""
BLOCKS: dict[str, str] = {
    "copies of a block": """
def build_model(config: object) -> nn.Module:
    one = block()
    return Network([copy.deepcopy(one) for _ in range(2)])
""",
    "lists in a list": """
def build_model(config: object) -> nn.Module:
    return Network([nn.ModuleList([block(), block()]) for _ in range(2)])
""",
    "one block three times": """
def build_model(config: object) -> nn.Module:
    return Network([block()] * 3)
""",
    "a weight of two blocks": """
def build_model(config: object) -> nn.Module:
    model = Network([nn.Linear(8, 8), nn.Linear(8, 8), block()])
    model.blocks[1].weight = model.blocks[0].weight
    return model
""",
    "blocks in blocks": """
def build_model(config: object) -> nn.Module:
    return Network([block(), block()])


def modules_to_shard(model: Any) -> list[nn.Module]:
    return [each for each in model.blocks.modules() if isinstance(each, nn.Sequential | nn.Linear)]
""",
    "weights in one tensor": """
def build_model(config: object) -> nn.Module:
    model = Network([nn.Linear(8, 8), nn.Linear(8, 8)])
    for each, values in zip(model.blocks, torch.randn(2, 8, 8).unbind(), strict=True):
        each.weight = nn.Parameter(values)
    return model
""",
    "a buffer that ranks draw": """
def build_model(config: object) -> nn.Module:
    model = Network([Scaled()])
    model.blocks[0].register_buffer("scale", torch.tensor([1.0 + dist.get_rank()]))
    return model
""",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_model_trains_with_shards_as_replicas_do(name: str, project: Render, tmp_path: Path) -> None:
    programs = [
        Program(
            owned_by(project(logging="csv", parallel=parallel), MODEL + BLOCKS[name], tmp_path / parallel / "project"),
            tmp_path / parallel / "run",
            OPTIONS,
        )
        for parallel in ("fsdp", "ddp")
    ]
    run_all([[program] for program in programs])
    shards, replicas = (whole_checkpoint(programs[0].run_dir), checkpoint(programs[1].run_dir))
    assert relative_difference(shards["model"], replicas["model"]) <= 1e-5


DIFFERENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "blocks in an evaluation": (
        """
class Routed(Network):
    def forward(self, rows: Tensor) -> Any:
        if self.training:
            return super().forward(rows)
        return self.head(self.blocks[dist.get_rank()](self.first(rows)))


def build_model(config: object) -> nn.Module:
    return Routed([block(), block()])
""",
        {},
        "model.py: the ranks have called different blocks: call the same ones",
    ),
    "parameters in a step": (
        """
class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choices = nn.ModuleDict({"0": nn.Linear(8, 8), "1": nn.Linear(8, 8)})

    def forward(self, hidden: Tensor) -> Any:
        return self.choices[str(dist.get_rank())](hidden)


def build_model(config: object) -> nn.Module:
    return Network([Choice(), Choice()])
""",
        {"find_unused_parameters": True},
        "model.py: the ranks have used different parameters in a step",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_use_different_weights_are_refused(name: str, project: Render, tmp_path: Path) -> None:
    build, options, words = DIFFERENT[name]
    place = owned_by(project(logging="csv", parallel="fsdp"), MODEL + build, tmp_path / "project")
    [[ended]] = run_all([[Program(place, tmp_path / "run", OPTIONS | options, code=2)]])
    assert words in error_in(ended.output)


MOMENTUM = """
class Momentum(Network):
    def forward(self, rows: Tensor) -> Any:
        with torch.no_grad():
            for weight in self.first.parameters():
                {change}
        return super().forward(rows)


def build_model(config: object) -> nn.Module:
    return Momentum([block(), block()])
"""
UNIT_NORM = """
class UnitNorm(nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        self.weight.data.div_(self.weight.norm().detach())
        return super().forward(hidden)


def build_model(config: object) -> nn.Module:
    return Network([block(), UnitNorm(8, 8)])
"""
CHANGING = {
    "in place": (MOMENTUM.format(change="weight.lerp_(0 * weight, 0.5)"), "first.bias, first.weight of Momentum"),
    "by a new one": (MOMENTUM.format(change="weight.data = 0.5 * weight"), "first.bias, first.weight of Momentum"),
    "in its data": (MOMENTUM.format(change="weight.data.mul_(0.5)"), "first.bias, first.weight of Momentum"),
    "in a block": (UNIT_NORM, "weight of UnitNorm"),
}


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("reshard", [True, False])
def test_weights_that_compute_changes_are_refused(kind: str, reshard: bool, project: Render, tmp_path: Path) -> None:
    """As those of a momentum encoder: they are gathered, and the shards would stay as they are."""
    build, changed = CHANGING[kind]
    place = owned_by(project(logging="csv", parallel="fsdp"), MODEL + build, tmp_path / "project")
    [[ended]] = run_all([[Program(place, tmp_path / "run", OPTIONS | {"reshard": reshard}, code=2)]])
    assert f"compute() changes {changed}, and its shards would not" in error_in(ended.output)


# Appended to task.py: what it keeps of a weight is a number, whole, of other shapes, and in mappings of other types.
OPTIMIZER = """

class Unusual(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["number"], state["rows"] = weight.new_zeros(()), weight.new_zeros(weight.shape[:1])
                    state["moments"] = defaultdict(lambda: torch.zeros_like(weight))
                state["number"] += 1
                state["norm"], state["columns"] = weight.grad.norm(), weight.grad.sum(0).full_tensor()
                state["rows"] += weight.grad.reshape(len(weight), -1).sum(1)
                state["moments"]["first"].mul_(0.5).add_(weight.grad)
                weight.sub_(state["moments"]["first"] / state["number"].sqrt(), alpha=group["lr"])


def build_optimizer(model: Any, config: Any) -> Any:
    return Unusual(model.parameters(), {"lr": config.lr})
"""


def test_what_an_optimizer_and_a_layer_with_a_version_keep_is_resumed(project: Render, tmp_path: Path) -> None:
    build = "def build_model(config: object) -> nn.Module:\n    return Network([Scaled(), Scaled()])\n"
    place = owned_by(project(logging="csv", parallel="fsdp"), MODEL + build, tmp_path / "project")
    imports = "from collections import defaultdict\nfrom typing import Any\n\nimport torch\n"
    extend(place / "ddp_project" / "task.py", OPTIMIZER, imports=imports)
    whole = Program(place, tmp_path / "whole", OPTIONS)
    stopped = stopped_at(whole, 7)
    run_all([[whole], stopped])
    assert_ends_like(whole, stopped[-1])
    assert whole_checkpoint(whole.run_dir)["model"]["blocks.0.scale"] == 1
    kept: Any = whole_checkpoint(whole.run_dir)["optimizer"]["state"]
    assert {tuple(each["number"].shape) for each in kept.values()} == {()}
