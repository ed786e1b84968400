"""Any number of processes arrives where a plain loop of one process does."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conftest import Measured, Package
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.support import reference
from tests.support.forked_runs import AS_ON_A_GPU, Program, metrics, relative_difference, run_all
from tests.support.training import checkpoint, whole_checkpoint
from tools.rewriting import Rewrite, extend

CLIP_NORM = 0.05
OPTIONS = {"global_batch_size": 24, "epochs": reference.EPOCHS, "lr": 0.01, "warmup_steps": 5, "clip_norm": CLIP_NORM}
# A third of the samples do not count: other numbers of them on each rank and in each micro-batch.
UNEVEN = Rewrite(
    '"loss": $X',
    '"loss": Mean(F.cross_entropy(logits, labels, reduction="sum", ignore_index=0), (labels != 0).sum())',
    "compute",
)
# Samples that weigh next to nothing in two steps of three.
TINY = Rewrite(
    '"loss": Mean($X, $Y)',
    '"loss": Mean((1.0 if current_step() % 3 == 1 else 1e-9) * $X, (1.0 if current_step() % 3 == 1 else 1e-9) * $Y)',
    "compute",
)


def recipe(accum_steps: int = 1, clip_norm: float = CLIP_NORM) -> reference.Recipe:
    return reference.Recipe(24, 24 // accum_steps, reference.EPOCHS, warmup=5, lr=0.01, clip_norm=clip_norm)


@pytest.mark.parametrize("accum_steps", [1, 2, 3])
def test_one_two_and_four_processes_arrive_where_plain_pytorch_does(
    accum_steps: int, plain_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    # An epoch has 119 // 24 = 4, 119 // 12 = 9 or 119 // 8 = 14 micro-batches: with 2 and 3 to a step the last step is
    # shorter, and the last samples of each epoch do not fill a micro-batch.
    options = OPTIONS | {"accum_steps": accum_steps, "log_every": 1}
    programs = {size: Program(plain_project, tmp_path / str(size), options, size) for size in (1, 2, 4)}
    run_all([[program] for program in programs.values()])
    expected, norms = reference.train(recipe(accum_steps), orders)
    assert min(norms) > CLIP_NORM, "every step is clipped"
    for size in programs:
        recorded = dict(metrics(tmp_path / str(size))["grad_norm"])
        assert recorded == pytest.approx(dict(enumerate(norms, start=1)), rel=1e-4)
    found = {size: relative_difference(checkpoint(tmp_path / str(size))["model"], expected) for size in programs}
    for size, difference in found.items():
        measured("processes", f"world size {size}, --accum-steps {accum_steps}", difference)
        assert difference <= 1e-5, f"{size} processes"


def largest_difference(program: Program, expected: dict[str, Tensor]) -> float:
    weights = checkpoint(program.run_dir)["model"]
    return max(float((weights[name] - expected[name]).abs().max()) for name in expected)


@pytest.fixture
def uneven(plain_project: Path, tmp_path: Path) -> Path:
    project = shutil.copytree(plain_project, tmp_path / "project")
    UNEVEN.apply(project / "ddp_project" / "task.py")
    return project


@pytest.mark.parametrize("clip_norm", [0.0, CLIP_NORM])
@pytest.mark.parametrize("accum_steps", [1, 3])
def test_uneven_counts_arrive_there_too(
    accum_steps: int, clip_norm: float, uneven: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    options = OPTIONS | {"accum_steps": accum_steps, "clip_norm": clip_norm}
    programs = [Program(uneven, tmp_path / str(size), options, size) for size in (1, 2, 4)]
    run_all([[program] for program in programs])
    expected, _ = reference.train(recipe(accum_steps, clip_norm), orders, ignored=0)
    for program in programs:
        difference, size = largest_difference(program, expected), program.world_size
        measured("uneven", f"world size {size}, --accum-steps {accum_steps}, --clip-norm {clip_norm}", difference)
        assert difference <= 1e-6, f"{size} processes"


def test_counts_of_any_size_arrive_there(
    plain_project: Path, sharded_project: Path, orders: list[list[int]], tmp_path: Path
) -> None:
    """Weights of samples that are tiny, at the start and later: beside a count of usual size, they have no digits."""
    programs: list[Program] = []
    for project, size in ((plain_project, 1), (plain_project, 2), (sharded_project, 2)):
        copy = shutil.copytree(project, tmp_path / str(len(programs)) / "project")
        TINY.apply(copy / "ddp_project" / "task.py")
        extend(copy / "ddp_project" / "task.py", imports="from .runtime import current_step\n")
        programs.append(Program(copy, copy.parent / "run", OPTIONS, size))
    run_all([[program] for program in programs])
    expected, _ = reference.train(recipe(), orders)
    for program in programs:
        found = whole_checkpoint(program.run_dir)["model"]
        assert relative_difference(found, expected) <= 1e-5, program.run_dir.parent.name


def test_uneven_counts_arrive_there_as_on_a_gpu(uneven: Path, orders: list[list[int]], tmp_path: Path) -> None:
    """Over stops, too, after which a run ends as one without them, bit for bit. Clipping would hide a wrong divisor."""
    AS_ON_A_GPU.apply(uneven / "ddp_project" / "runtime" / "optimizer_step.py")
    whole = Program(uneven, tmp_path / "whole", OPTIONS | {"accum_steps": 3, "clip_norm": 0.0})
    stopped = stopped_at(whole, 4, 7)
    run_all([[whole], stopped])
    assert largest_difference(whole, reference.train(recipe(3, clip_norm=0.0), orders, ignored=0)[0]) <= 1e-6
    assert_ends_like(whole, stopped[-1])


# Appended to data.py: batches of 16 to 24 samples, by the numbers of tokens that the samples are said to have.
IN_TOKENS = """

def load_data(config, load=load_data):
    train, evaluation = load(config)
    return Data(train, evaluation, order=tokens_per_batch([10 + i % 5 for i in range(len(train))], 240))
"""


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_batches_of_a_number_of_tokens_arrive_there(
    accum_steps: int, plain_project: Path, orders_of_tokens: Callable[[int], list[list[int]]], tmp_path: Path
) -> None:
    """On other numbers of ranks, and over stops with other numbers of ranks."""
    project = shutil.copytree(plain_project, tmp_path / "project")
    extend(project / "ddp_project" / "data.py", IN_TOKENS, imports="from .runtime import Data, tokens_per_batch\n")
    options = OPTIONS | {"accum_steps": accum_steps, "global_batch_size": 999}  # which does not matter
    programs = [Program(project, tmp_path / str(size), options, size) for size in (1, 2, 4)]
    stopped = [
        replace(each, world_size=size) for each, size in zip(stopped_at(programs[1], 4, 9), (2, 1, 4), strict=True)
    ]
    run_all([*([program] for program in programs), stopped])
    batches = [each for epoch in range(reference.EPOCHS) for each in orders_of_tokens(epoch)]
    expected = trained_on(batches)
    for program in (*programs, stopped[-1]):
        assert largest_difference(program, expected) <= 1e-6, program.run_dir.name


@pytest.fixture
def orders_of_tokens(package: Package) -> Callable[[int], list[list[int]]]:
    order = package("runtime.orders").tokens_per_batch([10 + i % 5 for i in range(reference.SAMPLES)], 240)

    def batches(epoch: int) -> list[list[int]]:
        found = order(reference.SAMPLES, 0, epoch)
        return [each.tolist() for each in np.split(found.indices, found.sizes.cumsum()[:-1])]

    return batches


def trained_on(batches: Sequence[list[int]]) -> dict[str, Tensor]:
    (images, labels), network = reference.data(), reference.model()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    for step, samples in enumerate(batches):
        share = (step - 5) / (len(batches) - 5)
        lr = 0.01 * ((step + 1) / 5 if share < 0 else (1 + math.cos(math.pi * share)) / 2)
        F.cross_entropy(network(images[samples]), labels[samples]).backward()
        reference.take_step(network, optimizer, lr, CLIP_NORM)
    return network.state_dict()


def test_batch_norm_sees_its_part(
    batch_norm_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    """Two processes equal a plain loop whose BatchNorm sees half batches, not one whose BatchNorm sees whole ones."""
    run_all([[Program(batch_norm_project, tmp_path / "run", OPTIONS)]])
    weights = checkpoint(tmp_path / "run")["model"]
    same = relative_difference(weights, reference.train(recipe(), orders, parts=2)[0])
    other = relative_difference(weights, reference.train(recipe(), orders, parts=1)[0])
    measured("batch_norm", "against a plain loop whose BatchNorm sees half batches", same)
    measured("batch_norm", "against a plain loop whose BatchNorm sees whole batches", other)
    assert same <= 1e-5
    assert other > 1e-2
