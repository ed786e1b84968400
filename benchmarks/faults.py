"""Measures what verified checkpoints cost: python -m benchmarks.faults. Nothing else should run meanwhile.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from generator.answers.questions import TEMPLATE
from generator.render.project import render
from generator.render.snapshot import take_snapshot

RESULTS = TEMPLATE / "benchmarks" / "results" / "faults.json"
SIZES = {1: 60, 10: 30, 100: 12, 1000: 5, 2000: 5}  # MB, and how often each is saved
TENSORS = 8


def main() -> None:
    """Measure all, and add it to the results."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot"))
        measured = {"saving": saving(project, Path(folder))}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(results | measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


def saving(project: Path, folder: Path) -> dict[str, float]:
    """Time a save with its verification, in times of one without, for each size."""
    sys.path.insert(0, str(project))
    files = importlib.import_module("ddp_project.runtime.storage")
    manifest = importlib.import_module("ddp_project.runtime.storage").Manifest(folder)

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
    """Call both in turn, and return the medians of what they took (seconds)."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for taken, work in zip(times, (one, other), strict=True):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
