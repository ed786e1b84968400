"""Measures how many worker processes load data from a disk best: python -m benchmarks.loading.

A rank reads compressed images, each a file, and takes a step that either computes on the rank's own cores or leaves
them idle, as a step on a GPU does. The results are in benchmarks/results/loading.json, from which `ddp-template docs`
makes a table in docs/speed.md. Nothing else should run on the machine meanwhile.
"""

import functools
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from generator.answers.questions import TEMPLATE
from generator.render.project import render
from generator.render.snapshot import take_snapshot

from .machines import machine

RESULTS = TEMPLATE / "benchmarks" / "results" / "loading.json"
IMAGES, BATCH, STEPS, ROUNDS = 256, 16, 40, 5
WORKERS = (0, 1, 2, 4, "auto")
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


def main() -> None:
    """Measure each number of workers in turn, with both kinds of steps."""
    with tempfile.TemporaryDirectory() as folder:
        project, images = Path(folder) / "project", Path(folder) / "images"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot"))
        images.mkdir()
        sys.path.insert(0, str(project))
        loading = importlib.import_module("ddp_project.runtime.loading")
        rates = measure(loading, Files(images))
    medians = {
        kind: {str(workers): round(statistics.median(found), 1) for workers, found in of_kind.items()}
        for kind, of_kind in rates.items()
    }
    results = {"date": date.today().isoformat(), "machine": machine(), "samples_per_second": medians}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(medians, indent=1))


def measure(loading: Any, data: Files) -> dict[str, dict[int | str, list[float]]]:
    """Samples per second of each number of workers, for each kind of step."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    products()
    steps: dict[str, Callable[[], object]] = {"the rank's cores": compute, "a GPU (here: a pause)": pause}
    rates: dict[str, dict[int | str, list[float]]] = {}
    for kind, step in steps.items():
        rates[kind] = {workers: [] for workers in WORKERS}
        for _ in range(ROUNDS):
            for workers in WORKERS:
                rates[kind][workers].append(rate(loading, data, workers, step))
    return rates


def rate(loading: Any, data: Files, workers: int | str, step: Callable[[], object]) -> float:
    """Train one epoch and return its samples per second, without the first step."""
    indices = torch.randint(IMAGES, (STEPS, BATCH), generator=torch.Generator().manual_seed(0)).tolist()
    batches = [loading.Batch(chosen, (i,)) for i, chosen in enumerate(indices)]
    loader = loading.DeviceBatches(data, batches, loading.Config(workers=workers), torch.device("cpu"))
    started = 0.0
    for i, _ in enumerate(loader):
        if i == 1:
            started = time.perf_counter()
        step()
    return (STEPS - 1) * BATCH / (time.perf_counter() - started)


@functools.cache
def products() -> int:
    """How many matrix products make a step."""
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
    """Leave the cores to others for a while."""
    time.sleep(STEP)


if __name__ == "__main__":
    main()
