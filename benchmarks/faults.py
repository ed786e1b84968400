"""Measures what surviving faults costs: python -m benchmarks.faults. Nothing else should run on the machine meanwhile.

Both sides of each ratio are measured in turn in the same processes. The results are written to
benchmarks/results/faults.json, from which `ddp-template docs` makes tables in docs/faults.md.
"""

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch import multiprocessing as mp

from generator.questions import TEMPLATE
from generator.rendering import render
from generator.snapshot import take_snapshot

RESULTS = TEMPLATE / "benchmarks" / "results" / "faults.json"
SIZES = {1: 60, 10: 30, 100: 12, 1000: 5, 2000: 5}  # MB, and how often each is saved
TENSORS = 8
BLOCK, BLOCKS = 20, 60  # steps that are measured together, and how many such blocks on each side


def main() -> None:
    """Measure all, and add it to the results."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot"))
        measured = {"saving": saving(project, Path(folder)), "step": stepping(project)}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(results | measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


def saving(project: Path, folder: Path) -> dict[str, float]:
    """Time a save with its verification, in times of one without, for each size."""
    sys.path.insert(0, str(project))
    files = importlib.import_module("ddp_project.files")
    manifest = importlib.import_module("ddp_project.manifest").Manifest(folder)

    def verified(checkpoint: dict[str, Tensor], path: Path) -> None:
        with files.whole_file(path) as file:
            torch.save(checkpoint, file)
            manifest.enter(file.sha256(), {"file": path.name, "size": file.size})

    ratios = {}
    for megabytes, repeats in SIZES.items():
        checkpoint = {str(i): torch.randn(megabytes * 250_000 // TENSORS) for i in range(TENSORS)}
        path = folder / "step-00000001.pt"
        plain_time, verified_time = in_turn(
            repeats, partial(plainly, checkpoint, path), partial(verified, checkpoint, path)
        )
        ratios[f"a save of {megabytes} MB, with and without (ratio)"] = round(verified_time / plain_time, 2)
    return ratios


def plainly(checkpoint: dict[str, Tensor], path: Path) -> None:
    """Save as safely, but without a digest."""
    with open(path.with_suffix(".tmp"), "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".tmp"), path)


def in_turn(repeats: int, one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Call both in turn, and give the medians of what they took (seconds)."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for taken, work in zip(times, (one, other), strict=True):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def stepping(project: Path) -> dict[str, float]:
    """Time an optimizer step of the default project with all that guards it, in times of one without."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(time_steps, (project, Path(folder)), nprocs=2)
        return {
            "an optimizer step of the digits' network on two processes, with and without (ratio)": round(
                json.loads((Path(folder) / "ratio").read_text()), 3
            )
        }


def time_steps(rank: int, project: Path, folder: Path) -> None:
    """On one of two ranks: take blocks of steps, guarded and bare in turn. Rank 0 writes the ratio of the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), rank=rank, world_size=2)
    sys.path.insert(0, str(project))
    train = importlib.import_module("train")
    distributed, config = (importlib.import_module(f"ddp_project.{name}") for name in ("distributed", "config"))
    world = distributed.World(rank, rank, 2, 2)
    run = train.set_up(config.Config(run_dir=folder / "run", device="cpu"), world, torch.device("cpu"))
    window = next(iter(train.windows(run.training, 1)))
    run.model.train()

    # Starting and ending the thread is no part of a step: it lives as long as the run.
    signs = distributed.SignsOfLife(rank, 2, patience=60)

    def block() -> None:
        for _ in range(BLOCK):
            train.train_step(run, window, 1e-3)

    def bare_block() -> None:
        with bare(train, run), mock.patch.multiple(signs, _tell=lambda: None, _hear=lambda: None):
            block()

    block()
    bare_time, guarded_time = in_turn(BLOCKS, bare_block, block)
    signs.leave("")
    if rank == 0:
        (folder / "ratio").write_text(json.dumps(guarded_time / bare_time))
    dist.destroy_process_group()


@contextmanager
def bare(train: Any, run: Any) -> Iterator[None]:
    """Inside, no step is judged."""
    judging = mock.patch.multiple(run.finite, judge=lambda norm, optimizer: True)
    with judging, mock.patch.multiple(train, gradient_norm=lambda weights, largest: None):
        yield


if __name__ == "__main__":
    main()
