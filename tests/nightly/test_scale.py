"""Many samples and many ranks cost no more than few: shown by counting work and memory, not by the clock."""

import itertools
import math
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from torch import Tensor

from benchmarks.simulated import norms_of_resnet_50, one_of, progress_of
from tests.conftest import Package

FEW, MANY = 10**4, 10**9  # samples
BATCH, BATCHES = 32, 300  # which few samples have, too
FEW_RANKS, MANY_RANKS = 4, 1024


def peak(work: Callable[[], object]) -> int:
    """The bytes that it takes at most, of Python's and NumPy's memory."""
    work()  # what is imported or made once is no part of it
    tracemalloc.start()
    work()
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken


def first_of(batches: Iterable[Any]) -> int:
    """Take some batches, one after the other, and return how many samples they have."""
    return sum(len(batch.indices) for batch in itertools.islice(batches, BATCHES))


def training(package: Callable[..., Any], samples: int, place: float, ranks: int) -> Any:
    """The sampler of the last rank, some way into an epoch."""
    world = package("runtime.launcher").DistEnv(ranks - 1, 0, ranks, 1)
    sampler = package("runtime.sampling").ResumableDistributedSampler(samples, BATCH * ranks, world, 0)
    sampler.set_epoch(1, int(samples * place) // (BATCH * ranks) * BATCH * ranks)
    return sampler


@pytest.mark.parametrize(("place", "ranks"), [(0, 1), (0.99, 1), (0, MANY_RANKS), (0.99, MANY_RANKS)])
def test_the_memory_of_an_epoch_does_not_grow_with_the_samples(place: float, ranks: int, package: Package) -> None:
    few, many = training(package, FEW, 0, 1), training(package, MANY, place, ranks)
    assert first_of(few) == first_of(many) == BATCHES * BATCH
    # At once, the order is computed of 16,384 samples and not of 9,984, which are all.
    assert peak(lambda: first_of(many)) < 3 * peak(lambda: first_of(few))


@pytest.mark.parametrize("ranks", [1, MANY_RANKS])
def test_the_memory_of_an_evaluation_does_not_grow_with_the_samples(ranks: int, package: Callable[..., Any]) -> None:
    def evaluate(samples: int, ranks: int) -> int:
        world = package("runtime.launcher").DistEnv(0, 0, ranks, 1)
        batches = package("runtime.sampling").EvaluationSampler(samples, BATCH, world)
        assert len(batches) == math.ceil(math.ceil(samples / ranks) / BATCH)
        return first_of(batches)

    for taken in (evaluate(FEW, 1), evaluate(MANY, ranks)):
        assert BATCHES * (BATCH - 1) <= taken <= BATCHES * BATCH
    assert peak(lambda: evaluate(MANY, ranks)) < 1.5 * peak(lambda: evaluate(FEW, 1))


def read_so_far() -> int:
    """The bytes that this thread has asked files for; what is mapped is not read. Another one may look at costs."""
    return int(dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())["rchar"])


def test_to_go_on_costs_a_rank_no_more_among_many(package: Callable[..., Any], tmp_path: Path) -> None:
    read, records, memory, sizes = [], [], [], []
    for ranks in (FEW_RANKS, MANY_RANKS):
        config = package("config").Config(run_dir=tmp_path / str(ranks))
        progress = progress_of(package, config)
        checkpoints = package("runtime.checkpoint").Checkpoints(config, progress, norms_of_resnet_50())
        path = checkpoints.folder / "last.pt"
        with one_of(ranks):
            checkpoints.save()
        with one_of(ranks, ranks - 1):
            memory.append(peak(partial(checkpoints._load, path)))
            before = read_so_far()
            checkpoints._load(path)
            read.append(read_so_far() - before)
        sizes.append(path.stat().st_size)
        with zipfile.ZipFile(path) as file:
            records.append(len(file.namelist()))
    assert sizes[1] > 100 * sizes[0], "the file holds the states of all ranks"
    assert records[0] == records[1]
    assert read[1] < 1.5 * read[0] < sizes[1] / 100
    assert memory[1] < 1.1 * memory[0]


def test_what_a_rank_sends_to_save_does_not_grow_with_the_ranks(package: Callable[..., Any], tmp_path: Path) -> None:
    """And no rank but the first gets the states of the others."""
    sent: list[int] = []

    def gather(own: Tensor, rows: list[Tensor] | None = None, dst: int = 0) -> None:
        assert rows is None
        sent.append(own.nbytes)

    config = package("config").Config(run_dir=tmp_path)
    checkpoints = package("runtime.checkpoint").Checkpoints(config, progress_of(package, config), norms_of_resnet_50())
    for ranks in (FEW_RANKS, MANY_RANKS):
        with one_of(ranks, ranks - 1), mock.patch.object(dist, "gather", gather):
            checkpoints.save()
    few, many = sent[: len(sent) // 2], sent[len(sent) // 2 :]
    assert few == many != []
    assert not [*tmp_path.iterdir()], "only the first rank writes"
