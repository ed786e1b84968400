"""Measures how many worker processes load data from a disk best.

A rank reads compressed images, each a file, and takes a step that either computes on the rank's own cores or leaves
them idle, as a step on a GPU does.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from . import runner
from .runner import Record, imported, in_turn, new_project

IMAGES, BATCH, STEPS = 256, 16, 40
WORKERS: tuple[int | str, ...] = (0, 1, 2, 4, "auto")
SIZE = 384  # of a matrix
STEP = 0.03  # seconds, where nothing else runs


class Files(Dataset[Any]):
    """Images of 3 x 96 x 96 pixels, each in a compressed file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        numbers = np.random.default_rng(0)
        for i in range(IMAGES):
            np.savez_compressed(folder / f"{i}.npz", image=numbers.integers(0, 32, (3, 96, 96), dtype=np.uint8))

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> torch.Tensor:
        with np.load(self.folder / f"{index}.npz") as file:
            return torch.from_numpy(file["image"]).float() / 255


@dataclass
class Benchmark(runner.Benchmark):
    """Samples per second of each number of workers."""

    key: ClassVar = ("step",)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Measure each number of workers in turn, with both kinds of steps."""
        sys.path.insert(0, str(new_project(folder / "project")))
        (folder / "images").mkdir()
        images = Files(folder / "images")
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        products()
        steps: dict[str, Callable[[], object]] = {"the rank's cores": compute, "a GPU (here: a pause)": pause}
        for kind, step in steps.items():
            runs = {str(workers): partial(rate, images, workers, step) for workers in WORKERS}
            *_, found = in_turn(runs, self.rounds)
            yield [{"step": kind, "workers": workers, **numbers} for workers, numbers in found.items()]


def rate(data: Files, workers: int | str, step: Callable[[], object]) -> Record:
    """Train one epoch and return its samples per second, without the first step."""
    loading = imported("ddp_project.runtime.data_loading")
    indices = torch.randint(IMAGES, (STEPS, BATCH), generator=torch.Generator().manual_seed(0)).tolist()
    batches = [loading.Batch(chosen, (i,)) for i, chosen in enumerate(indices)]
    loader = loading.PrefetchLoader(data, batches, loading.Config(workers=workers), torch.device("cpu"))
    started = 0.0
    for i, _ in enumerate(loader):
        if i == 1:
            started = time.perf_counter()
        step()
    return {"samples_per_second": round((STEPS - 1) * BATCH / (time.perf_counter() - started), 1)}


@functools.cache
def products() -> int:
    """Return how many matrix products make a step."""
    factor = torch.ones(SIZE, SIZE)
    started = time.perf_counter()
    for _ in range(1000):
        factor @ factor
    return round(1000 * STEP / (time.perf_counter() - started))


def compute() -> None:
    """Give all cores of the rank the work of a step."""
    factor = torch.ones(SIZE, SIZE)
    for _ in range(products()):
        factor @ factor


def pause() -> None:
    """Leave the cores idle for a step."""
    time.sleep(STEP)
