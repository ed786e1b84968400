"""What each guard and each logger of the generated project takes of a step, by clocks around their calls.

To compare runs with and without them would tell less: the same program takes times that differ by more than a guard.
"""

import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import psutil
import torch

from . import runner
from .blocks import generated_run, joined, on_two_ranks, train_block
from .contenders.settings import RANKS
from .contenders.workloads import EPOCHS, LOG_EVERY, NAME, STEPS
from .runner import Record, imported, say
from .step_parts import PROJECT, UPDATE, put_clock, timed
from .trials import render_project

STEPS_OF_WORKLOAD = {"tiny_mlp": 4000, "small_cnn": 2000, "resnet": 200}
PARTS = 5  # of the steps, if --rounds does not say
LOGGERS = ("csv", "tensorboard", "mlflow", "wandb")
PLAIN, BAR, SIGNS, LOG = "console", "a progress bar on a screen", "signs of life", "the log"
JUDGING = "judging each step by its gradients"
OF_A_THREAD = {SIGNS: tuple(f"{PROJECT}.watchdog:Watchdog.{name}" for name in ("_tell", "_hear"))}
CALLS = {
    JUDGING: (f"{UPDATE}:Update.normalize_gradients", f"{UPDATE}:Update.is_finite"),
    LOG: (f"{PROJECT}.tracking:Tracker.log",),
}


@dataclass
class Benchmark(runner.Benchmark):
    """Train with a clock around each guard, and around each logger."""

    rounds: int = PARTS
    """How many parts of the run are measured."""

    key: ClassVar = ("workload",)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of each workload."""
        for workload, steps in STEPS_OF_WORKLOAD.items():
            say(workload)
            measured = measure_guards(folder / workload, workload, steps, rounds=self.rounds)
            yield [{"workload": workload, "guard": name, **numbers} for name, numbers in measured.items()]


def measure_guards(
    folder: Path, workload: str, steps: int, loggers: Sequence[str] = LOGGERS, rounds: int = PARTS
) -> dict[str, Record]:
    """Return, for each guard, the microseconds that it takes of a step, and their share of the step's time."""
    of_a_part = max(LOG_EVERY, steps // rounds)
    chosen = {NAME: workload, STEPS: str(of_a_part), EPOCHS: "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    measured: dict[str, Record] = {}
    for logger in (PLAIN, *loggers):
        render_project(folder / logger / "project", logging=logger)
        found = on_two_ranks(measure_on_rank, folder / logger, chosen, of_a_part, rounds)
        measured |= found if logger == PLAIN else {f"{LOG} and {logger}": found[LOG]}
    return measured


def measure_on_rank(rank: int, folder: Path, port: int, steps: int, rounds: int) -> None:
    """Train on one of two ranks with the clocks. Rank 0 writes what it finds."""
    with open(folder / f"log{rank}", "w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    with (
        joined(rank, folder / "project", port),
        open(os.devnull) as nothing,
        mock.patch.multiple(sys, stdin=nothing, stderr=Screen()),
    ):
        run, taken, beside = generated_run(rank, folder, torch.device("cpu")), Counter[str](), Counter[str]()
        for calls, counter, now in ((CALLS, taken, time.perf_counter_ns), (OF_A_THREAD, beside, time.thread_time_ns)):
            for guard, names in calls.items():
                for name in names:
                    put_clock(name, guard, counter, now)
        steps_from, progress_bar = run.training.steps_from, run.reporter.progress_bar
        run.training.steps_from = lambda progress: clocked(steps_from(progress), "", taken)
        run.reporter.progress_bar = lambda training: clocked(progress_bar(training), BAR, taken)
        signs = imported(f"{PROJECT}.watchdog").Watchdog(rank, RANKS, patience=60)
        parts: dict[str, list[float]] = {guard: [] for guard in (JUDGING, SIGNS, BAR, LOG)}
        seconds = []
        for part in range(rounds + 1):
            taken.clear()
            beside.clear()
            began, others = time.perf_counter(), seconds_of_children()
            train_block(run)
            taken[LOG] += round(1e9 * (seconds_of_children() - others))
            if part:  # the first one warms up
                seconds.append(time.perf_counter() - began)
                for guard, found in parts.items():
                    found.append((taken | beside)[guard] / 1e9)
        signs.leave("")
        run.reporter.tracker.close()
    if rank == 0:
        measured = {
            guard: {
                "share": [each / taken_by_all for each, taken_by_all in zip(found, seconds, strict=True)],
                "microseconds": [1e6 * each / steps for each in found],
            }
            for guard, found in parts.items()
        }
        (folder / "measured.json").write_text(json.dumps(measured))


class Screen(io.StringIO):
    """A stream that someone seems to watch."""

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True


def clocked(iterable: Iterable[Any], part: str, taken: Counter[str]) -> Iterator[Any]:
    """Iterate, and let the time of the iterator count for a part."""
    following = timed(partial(next, iter(iterable)), part, taken)
    with suppress(StopIteration):
        while True:
            yield following()


def seconds_of_children() -> float:
    """Return the processor time of all processes that this one has started, as some loggers do."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(each.user + each.system for each in times))
