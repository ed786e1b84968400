"""Trains projects with little data on forked ranks, several at a time, and reads what they saw and left."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from generator.check.train.forking import Ended, run_forked, train_all
from generator.check.train.rank import Run
from generator.check.train.records import OF_CLOCK, History, read_csv
from generator.check.train.training_case import environment
from tests.conftest import Render
from tests.support import reference
from tests.support.processes import hang_timeout
from tests.support.ranks import start_forking
from tests.support.training import ON_CPU, module_of, whole_checkpoint
from tools.rewriting import Rewrite, extend

AT_ONCE = 4  # sequences; ranks wait for each other now and then

# Appended to data.py: 119 = 7 x 17 training samples and 10 to evaluate on, which neither 2 nor 4 processes divide well.
EXCERPT = """

def first_samples(config: Any, load: Any = load_data) -> Any:
    from .runtime.data_loading import checked

    own = checked(load(config))
    if not hasattr(own.train, "__getitem__"):  # a stream
        return own
    for sets in (own.evaluation, own.test):
        sets.update({name: Subset(each, range(10)) for name, each in sets.items()})
    if given := own.order:  # it is made for all samples
        own.order = lambda *epoch: given(*epoch)[np.arange(119)]
    else:
        own.train = Subset(own.train, range(119))
    return own


load_data = first_samples
"""
# Appended to data.py: every rank prints which samples it trains on, a line for each micro-batch.
TELLING = """

def told(self: Dataset[Any], indices: list[int]) -> Any:
    if len(indices) > 1:  # at the start, single samples are compared with those of other ranks
        print("fetched", "training" if self is sets[0] else "validation", *indices, flush=True)
    return given(self, indices)


def telling(config: Any, load: Any = load_data) -> Any:
    own = load(config)
    sets[:] = [own[0] if isinstance(own, tuple) else own.train]
    return own


sets: list[Any] = []
given = Subset.__getitems__
Subset.__getitems__ = told
load_data = telling
"""
# Its first layer is a block. The last one is the root's: its three rows leave one of four ranks without any.
SHARDED_MODEL = f"""{reference.MODEL}

def modules_to_shard(model: nn.Module) -> list[nn.Module]:
    return [model.get_submodule("0")]
"""
# optimizer_step.py then keeps counts and decisions on the device, which fused optimizers can do on a CPU, too.
AS_ON_A_GPU = Rewrite('self.on_cpu = device.type == "cpu"', "self.on_cpu = False")


@dataclass(frozen=True)
class Program:
    project: Path
    run_dir: Path
    options: dict[str, Any]
    world_size: int = 2
    code: int = 0  # exit code of each rank
    deadline: float = 120  # seconds
    env: dict[str, str] = field(default_factory=dict)

    def ended_as_expected(self, ended: Ended) -> bool:
        return ended.codes == [self.code] * self.world_size

    def run(self) -> Run:
        options = [*ON_CPU, "--run-dir", str(self.run_dir), *words(self.options)]
        env, limit = environment(self.run_dir.parent) | self.env, hang_timeout(self.deadline)
        how: dict[str, Any] = {"one_writes": "workers" not in self.options, "deadline": limit}
        return Run(self.project, "torchrun", options, env, world_size=self.world_size, **how)


def words(options: Mapping[str, object]) -> list[str]:
    given = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return [word for word in given if word != "None"]


def one_after_another(programs: Sequence[Program]) -> list[Ended]:
    ends: list[Ended] = []
    for program in programs:
        ends.append(run_forked(program.run()))
        if not program.ended_as_expected(ends[-1]):
            break
    return ends


def ends_of(sequences: Iterable[Sequence[Program]]) -> list[list[Ended]]:
    """Run sequences of programs, several at a time, and return how they ended, in the order of the sequences."""
    start_forking()
    numbered = enumerate(sequences)
    done = {number: ends for (number, _), ends in train_all(lambda each: one_after_another(each[1]), numbered, AT_ONCE)}
    return [ends for _, ends in sorted(done.items())]


def run_all(sequences: Sequence[Sequence[Program]]) -> list[list[Ended]]:
    """The same, where each must end as expected."""
    ends = ends_of(sequences)
    for programs, ended in zip(sequences, ends, strict=True):
        for program, each in zip(programs, ended, strict=False):
            assert program.ended_as_expected(each), each.complaint or f"exit codes {each.codes}, not {program.code}"
    return ends


def fetched(ended: Ended, kind: str = "training") -> list[list[list[int]]]:
    """The samples of each micro-batch that each rank of a TELLING program fetched: [rank][micro-batch][sample]."""
    lines = [re.findall(rf"^fetched {kind} (.*)$", text, re.MULTILINE) for text in ended.output]
    return [[[*map(int, line.split())] for line in rank] for rank in lines]


def metrics(run_dir: Path) -> History:
    """What a project with logging=csv recorded, but for what depends on the clock."""
    return {name: values for name, values in read_csv(run_dir).items() if not name.startswith(OF_CLOCK)}


def state(run_dir: Path) -> dict[str, Any]:
    """All of the last checkpoint but options and code, which differ from start to start."""
    return {part: value for part, value in whole_checkpoint(run_dir).items() if part not in ("config", "code")}


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two sets of tensors, each tensor's relative to its largest entry."""
    assert one.keys() == other.keys()
    return max(
        ((one[key].double() - other[key].double()).abs().max() / other[key].double().abs().max()).item()
        for key in one
        if one[key].is_floating_point()
    )


@pytest.fixture(scope="package")
def small(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Return the project of some answers with an excerpt of its data and more appended to data.py. Do not change it."""
    made: dict[str, Path] = {}

    def get(more: str = "", **answers: object) -> Path:
        key = repr((more, sorted(answers.items())))
        if key not in made:
            made[key] = shutil.copytree(project(**answers), tmp_path_factory.mktemp("small") / "project")
            imports = "from typing import Any\n\nfrom torch.utils.data import Subset\n"
            extend(made[key] / "ddp_project" / "data.py", EXCERPT + more, imports=imports)
        return made[key]

    return get


def owned_by(project: Path, model: str, place: Path) -> Path:
    shutil.copytree(project, place)
    (place / "ddp_project" / "data.py").write_text(reference.DATA)
    (place / "ddp_project" / "model.py").write_text(model)
    return place


@pytest.fixture(scope="package")
def plain_project(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return owned_by(project(logging="csv"), reference.MODEL, tmp_path_factory.mktemp("plain") / "project")


@pytest.fixture(scope="package")
def sharded_project(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sharded") / "project"
    return owned_by(project(logging="csv", parallel="fsdp"), SHARDED_MODEL, place)


@pytest.fixture(scope="package")
def batch_norm_project(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return owned_by(project(logging="csv"), reference.BATCH_NORM_MODEL, tmp_path_factory.mktemp("norm") / "project")


@pytest.fixture(scope="package")
def orders(project: Render) -> list[list[int]]:
    """The order of each epoch; test_permutation.py tells what it is worth."""
    permutation: ModuleType = module_of(project() / "ddp_project" / "runtime" / "permutation.py")
    return [
        permutation.Permutation(reference.SAMPLES, 0, epoch)[np.arange(reference.SAMPLES)].tolist()
        for epoch in range(reference.EPOCHS)
    ]
