"""Measures what many samples and many ranks cost.

One process does what one of the ranks would (benchmarks/simulated.py): the network is left out. Each measurement is of
a new process.
"""

import itertools
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from . import runner
from .runner import Record, imported, new_project, say, seconds_of
from .simulated import norms_of_resnet_50, one_of, progress_of

SAMPLES = [10**power for power in range(3, 10)]
WORLD_SIZES = [1, 8, 64, 1024]
BATCH = 32  # samples of a rank's micro-batch
BATCHES = 1024  # after the first, over which the time of a batch is averaged
REPEATS = 9
BYTES_OF_INDEX = 48  # 8 in torch's permutation, 8 in a list, 32 as an integer of Python
OF_ORDERS = 10**6  # samples
ORDERS = (
    "random",
    "weighted()",
    "weighted(), without replacement",
    "Mixture() of two sets",
    "by_length()",
    "tokens_per_batch()",
)
NETWORKS = {"the digits' network": "digits", "the 53 BatchNorm layers of ResNet-50": "resnet-50"}
# They are imported before the processes fork, and so cost no memory there.
MODULES = (
    "runtime.collectives",
    "runtime.checkpoint",
    "runtime.launcher",
    "runtime.metrics",
    "runtime.orders",
    "runtime.sampling",
    "model",
)


@dataclass
class Benchmark(runner.Benchmark):
    """The seconds and the memory of samplers, checkpoints and the agreement of ranks."""

    rounds: int = REPEATS
    """Not used: each measurement has nine repeats."""
    most_samples: int = SAMPLES[-1]
    """Measure data sets up to this size."""
    most_ranks: int = WORLD_SIZES[-1]
    """Measure worlds up to this size."""

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield all records."""
        worlds = [ranks for ranks in WORLD_SIZES if ranks <= self.most_ranks]
        sets = [samples for samples in SAMPLES if samples <= self.most_samples]
        sizes = [(samples, ranks) for samples in sets for ranks in worlds if ranks * BATCH <= samples]
        torch.set_num_threads(1)  # else a child that was forked could not use torch's threads
        sys.path.insert(0, str(new_project(folder / "project")))
        for module in MODULES:
            of_project(module)
        records = [in_child(training, *size, place) for size in sizes for place in ("start", "late")]
        records += [in_child(ordered, kind, min(OF_ORDERS, sets[-1])) for kind in ORDERS]
        records += [in_child(evaluation, *size) for size in sizes]
        records += [in_child(of_torch, *size) for size in sizes if size[1] in (1, 1024)]
        records += [checkpoints(*case, folder) for case in itertools.product(NETWORKS, worlds)]
        yield records + [in_child(agreement, ranks) for ranks in worlds]


def in_child(work: Callable[..., Record], *arguments: Any) -> Record:
    """Do it in a new process, whose memory nothing else has used."""
    say(" ".join(map(str, (work.__name__, *arguments))))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), warm_up) as pool:
        return pool.submit(work, *arguments).result()


def of_project(module: str) -> Any:
    """Return a module of the rendered project."""
    return imported(f"ddp_project.{module}")


def world(ranks: int) -> Any:
    """The last one of so many ranks."""
    return of_project("runtime.launcher").DistEnv(ranks - 1, 0, ranks, 1)


def warm_up() -> None:
    """Take the memory that the code itself needs."""
    for samples in (
        of_project("runtime.sampling").ResumableDistributedSampler(BATCH, BATCH, world(1), 0),
        all_shuffled(BATCH, 1),
    ):
        next(iter(samples))


def training(samples: int, ranks: int, place: str) -> Record:
    """Begin an epoch, or go on when nine tenths of it are trained."""
    micro_batch = ranks * BATCH
    sampler = of_project("runtime.sampling").ResumableDistributedSampler(samples, micro_batch, world(ranks), 0)
    skip = samples // micro_batch * 9 // 10 * micro_batch if place == "late" else 0

    def begin() -> Any:
        sampler.set_epoch(1, skip)
        return sampler

    return {"part": "training", "samples": samples, "ranks": ranks, "place": place, **iterating(begin)}


def ordered(kind: str, samples: int) -> Record:
    """Begin an epoch in an order of runtime/orders.py, by weights or lengths that are log-normal."""
    orders = of_project("runtime.orders")
    numbers = np.random.default_rng(0).lognormal(5, 1, samples).clip(1, 4096).round()
    order = {
        "random": lambda: None,
        "weighted()": lambda: orders.weighted(numbers),
        "weighted(), without replacement": lambda: orders.weighted(numbers, replacement=False),
        "Mixture() of two sets": lambda: orders.Mixture([range(samples // 2)] * 2, [0.7, 0.3]),
        "by_length()": lambda: orders.by_length(numbers, batch=BATCH),
        "tokens_per_batch()": lambda: orders.tokens_per_batch(numbers, int(BATCH * numbers.mean())),
    }[kind]()
    sampler = of_project("runtime.sampling").ResumableDistributedSampler(samples, BATCH, world(1), 0, order)
    epochs = itertools.count(1)

    def begin() -> Any:
        sampler.set_epoch(next(epochs))
        return sampler

    return {"part": "orders", "order": kind, "samples": samples, **iterating(begin)}


def evaluation(samples: int, ranks: int) -> Record:
    """Begin an evaluation."""
    batches = of_project("runtime.sampling").EvaluationSampler
    measured = iterating(lambda: batches(samples, BATCH, world(ranks)))
    return {"part": "evaluation", "samples": samples, "ranks": ranks, **measured}


def of_torch(samples: int, ranks: int) -> Record:
    """Begin an epoch with torch's sampler, which makes a list of all samples on every rank, if that has room."""
    needed, free = BYTES_OF_INDEX * samples, psutil.virtual_memory().available
    about = {"part": "torch", "samples": samples, "ranks": ranks}
    if needed > 0.8 * free:
        return {**about, "needed": needed, "free": free}
    repeats = 1 if samples > 10**6 else REPEATS
    return {**about, **iterating(lambda: all_shuffled(samples, ranks), repeats)}


def all_shuffled(samples: int, ranks: int) -> Iterable[list[int]]:
    """The batches of torch's sampler."""
    dataset: Any = range(samples)
    sampler: Any = DistributedSampler(dataset, ranks, ranks - 1)
    return BatchSampler(sampler, BATCH, drop_last=True)


def iterating(begin: Callable[[], Iterable[Any]], repeats: int = REPEATS) -> Record:
    """Time the first batch and those that follow (seconds), and the memory that they take (bytes)."""
    before, first, each = peak_memory(), [], []
    for _ in range(repeats):
        started = time.perf_counter()
        batches = iter(begin())
        next(batches)
        began = time.perf_counter()
        first.append(began - started)
        count = sum(1 for _ in itertools.islice(batches, BATCHES))
        each.append((time.perf_counter() - began) / max(1, count))
    memory = peak_memory() - before
    return {"first_batch": statistics.median(first), "batch": statistics.median(each), "memory": memory}


def checkpoints(network: str, ranks: int, folder: Path) -> Record:
    """Save as rank 0, and load as another rank: the file is in the cache of the system then."""
    run_dir = folder / f"{NETWORKS[network]}-{ranks}"
    saved = in_child(saving, network, ranks, run_dir)
    return {
        "part": "checkpoints",
        "network": network,
        "ranks": ranks,
        **saved,
        **in_child(loading, network, ranks, run_dir),
    }


def kept(network: str, run_dir: Path) -> Any:
    """The checkpoints of a run directory: one of each, after what is slow only once."""
    model = of_project("model").build_model(None) if NETWORKS[network] == "digits" else norms_of_resnet_50()
    made = []
    for folder in (run_dir.with_name("first"), run_dir):
        config = of_project("config").Config(run_dir=folder, keep=1)
        made.append(of_project("runtime.checkpoint").Checkpoints(config, progress_of(of_project, config), model))
    with one_of(1):
        made[0].save()
        made[0].restore([made[0].folder / "last.pt"])
    return made[1]


def saving(network: str, ranks: int, run_dir: Path) -> Record:
    """Save on rank 0, and look there at the whole of the file, as before going on from it."""
    checkpoint, run = of_project("runtime.checkpoint"), kept(network, run_dir)

    def save_next() -> None:
        run.progress.step += 1
        run.save()

    before = peak_memory()
    with one_of(ranks):
        save = median_time(save_next)
        memory, path = peak_memory() - before, run.folder / "last.pt"
        verify = median_time(lambda: checkpoint.first_whole([path]))
    return {"size": path.stat().st_size, "save": save, "memory_of_save": memory, "verify": verify}


def loading(network: str, ranks: int, run_dir: Path) -> Record:
    """Load on the last rank."""
    run = kept(network, run_dir)
    before = peak_memory()
    with one_of(ranks, ranks - 1):
        load = median_time(lambda: run._load(run.folder / "last.pt"))
    return {"load": load, "memory_of_load": peak_memory() - before}


def agreement(ranks: int) -> Record:
    """Compare the ranks at the start."""
    config, check = of_project("config").Config(), of_project("runtime.collectives").check_ranks_agree
    data: Sized = range(10**9)
    with one_of(ranks):
        before = peak_memory()
        taken = median_time(lambda: check(config, training=data, validation=data))
    return {"part": "agreement", "ranks": ranks, "time": taken, "memory": peak_memory() - before}


def median_time(work: Callable[[], object]) -> float:
    """The median of what it takes (seconds)."""
    return statistics.median(seconds_of(work) for _ in range(REPEATS))


def peak_memory() -> int:
    """The largest resident set that this process has had (bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
