"""Many ranks cost each of them no more than few: shown by counting work and memory, not by the clock."""

import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from benchmarks.simulated import norms_of_resnet_50, one_of, progress_of

FEW_RANKS, MANY_RANKS = 4, 1024


def peak(work: Callable[[], object]) -> int:
    """The bytes that it takes at most, of Python's and NumPy's memory."""
    work()  # what is imported or made once is no part of it
    tracemalloc.start()
    work()
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken


def read_so_far() -> int:
    """The bytes that this thread has asked files for; what is mapped is not read. Another one may look at costs."""
    counters = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(counters["rchar"])


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
    progress = progress_of(package, config)
    checkpoints = package("runtime.checkpoint").Checkpoints(config, progress, norms_of_resnet_50())
    for ranks in (FEW_RANKS, MANY_RANKS):
        with one_of(ranks, ranks - 1), mock.patch.object(dist, "gather", gather):
            checkpoints.save()
    few, many = sent[: len(sent) // 2], sent[len(sent) // 2 :]
    assert few == many != []
    assert not [*tmp_path.iterdir()], "only the first rank writes"
