"""Measures what verified checkpoints cost: the ratio of a save with a digest to one without."""

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from . import runner
from .runner import Record, imported, in_turn, new_project, seconds_of

SIZES = {1: 60, 10: 30, 100: 12, 1000: 5, 2000: 5}  # MB, and the rounds
TENSORS = 8


@dataclass
class Benchmark(runner.Benchmark):
    """Fills the table on verification in docs/faults.md; tests measure the others."""

    rounds: int = 1
    """Measure this many times the rounds that each size has."""

    key: ClassVar = ("guarantee",)

    def machine(self) -> Record | None:
        """Return nothing: tests on other machines write to the same file."""
        return None

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the ratio of each size."""
        sys.path.insert(0, str(new_project(folder / "project")))
        storage, path = imported("ddp_project.runtime.storage"), folder / "step-00000001.pt"
        manifest = storage.Manifest(folder)

        def verified(checkpoint: dict[str, Tensor]) -> None:
            with storage.atomic_write(path) as file:
                torch.save(checkpoint, file)
                manifest.enter(file.sha256(), {"file": path.name, "size": file.size})

        def plain(checkpoint: dict[str, Tensor]) -> None:
            with open(path.with_suffix(".tmp"), "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path.with_suffix(".tmp"), path)

        def timed(save: Callable[[dict[str, Tensor]], None], checkpoint: dict[str, Tensor]) -> Record:
            return {"seconds": seconds_of(partial(save, checkpoint))}

        records = []
        for megabytes, rounds in SIZES.items():
            checkpoint = {str(i): torch.randn(megabytes * 250_000 // TENSORS) for i in range(TENSORS)}
            runs = {save.__name__: partial(timed, save, checkpoint) for save in (plain, verified)}
            *_, found = in_turn(runs, self.rounds * rounds, tell=False)
            with_digest, without = (statistics.median(found[name]["seconds"]) for name in ("verified", "plain"))
            case = f"a save of {megabytes} MB, with and without (ratio)"
            records.append({"guarantee": "saving", "case": case, "value": round(with_digest / without, 2)})
        yield records
