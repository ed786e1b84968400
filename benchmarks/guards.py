"""What each guard and each logger of the generated project takes of a step, by a clock around each of their calls.

To compare runs with and without them would tell less: the same program takes times that differ by more than a guard.
"""

import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import torch
import torch.distributed as dist
from torch import multiprocessing as mp

from .contenders.settings import RANKS
from .contenders.workloads import LOG_EVERY, NAME, chosen_workload
from .runner import Record, imported
from .trials import render_project

STEPS = {"tiny_mlp": 4000, "small_cnn": 2000, "resnet": 200}
PLAIN = "console"
PARTS = 5  # of the steps, whose differences are told
LOGGERS = ("csv", "tensorboard", "mlflow", "wandb")


def measure_guards(folder: Path, workload: str, steps: int, loggers: Sequence[str] = LOGGERS) -> dict[str, Record]:
    """Give, for each guard, the microseconds that it takes of a step, and their share of the step's time."""
    for logger in (PLAIN, *loggers):
        render_project(folder / logger, logging=logger)
    # Like the store of torchrun, it is kept by a process that has nothing else to do.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with mock.patch.dict(os.environ, {NAME: workload, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}):
        mp.spawn(measure_on_rank, (folder, store.port, steps, loggers), nprocs=RANKS)
    measured: dict[str, Record] = json.loads((folder / "measured.json").read_text())
    return measured


def measure_on_rank(rank: int, folder: Path, port: int, steps: int, loggers: Sequence[str]) -> None:
    """On one of two ranks: measure all guards. Rank 0 writes what it finds."""
    torch.set_num_threads(1)
    with open(folder / f"log{rank}", "w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    sys.path.insert(0, str(folder / PLAIN))
    imported("ddp_project.runtime.process_group").schedule_as_batch()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, timeout=timedelta(minutes=5), rank=rank, world_size=RANKS)
    with open(os.devnull) as nothing, mock.patch.object(sys, "stdin", nothing):
        measured = Steps(rank, folder).measure(steps, loggers)
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(measured))
    dist.destroy_process_group()


class Screen(io.StringIO):
    """A stream that someone seems to watch."""

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True


class Clock:
    """Adds up the seconds that calls of a function take."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any) -> Any:
            started = self.now()
            try:
                return function(*arguments)
            finally:
                self.seconds += self.now() - started

        return timed


class Steps:
    """Takes steps on one rank as the program's train_epoch() does, with clocks around what is not training."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.folder = folder
        self.train = imported("train")
        config = imported("ddp_project.config")
        launcher, heartbeat = (imported(f"ddp_project.runtime.{name}") for name in ("launcher", "heartbeat"))
        world = launcher.World(rank, rank, RANKS, RANKS)
        options = config.Config(run_dir=folder / "run", device="cpu", global_batch_size=chosen_workload().batch)
        self.run = self.train.Run(options, world, torch.device("cpu"))
        self.make_tracker = partial(make_tracker, options=options, world=world)
        self.batches = [*next(iter(self.run.training))]
        self.clocks = {what: Clock() for what in ("judging", "bar", "log")} | {"signs": Clock(time.thread_time)}
        for name in ("correct_gradients", "accepts"):
            setattr(self.run.update, name, self.clocks["judging"].around(getattr(self.run.update, name)))
        self.signs = heartbeat.SignsOfLife(rank, RANKS, patience=60)
        for name in ("_tell", "_hear"):
            setattr(self.signs, name, self.clocks["signs"].around(getattr(self.signs, name)))

    def measure(self, steps: int, loggers: Sequence[str]) -> dict[str, Record]:
        """Take so many steps for each logger."""
        with closing(self.make_tracker(self.folder / PLAIN)) as tracker:
            self.take(LOG_EVERY * PARTS, tracker)
            taken = self.take(steps, tracker)
        measured = {
            "judging each step by its gradients": taken["judging"],
            "signs of life": taken["signs"],
            "a progress bar on a screen": taken["bar"],
            "the log": taken["log"],
        }
        for name in loggers:
            # Not before: some have threads and processes of their own.
            with closing(self.make_tracker(self.folder / name)) as tracker:
                measured[f"the log and {name}"] = self.take(steps, tracker)["log"]
        self.signs.leave("")
        return measured

    def take(self, steps: int, tracker: Any) -> dict[str, Record]:
        """Take steps, in parts, and return what each clock shows for one."""
        parts: dict[str, list[tuple[float, float]]] = {what: [] for what in self.clocks}
        of_a_part = max(LOG_EVERY, steps // PARTS)
        for _ in range(PARTS):
            for clock in self.clocks.values():
                clock.seconds = 0.0
            beside = seconds_of_children()
            taken = self.timed(of_a_part, tracker)
            self.clocks["log"].seconds += seconds_of_children() - beside
            for what, clock in self.clocks.items():
                parts[what].append((clock.seconds / taken, 1e6 * clock.seconds / of_a_part))
        return {
            what: {"share": [share for share, _ in taken], "microseconds": [each for _, each in taken]}
            for what, taken in parts.items()
        }

    def timed(self, steps: int, tracker: Any) -> float:
        """Take steps, and return their seconds."""
        self.run.reporter.tracker = SimpleNamespace(log=self.clocks["log"].around(tracker.log))
        self.run.model.train()
        dist.barrier()
        began = time.perf_counter()
        with mock.patch.object(sys, "stderr", Screen()):
            watched = iter(self.run.reporter.watch(range(steps), self.run.progress))
            for step in range(1, steps + 1):
                self.clocks["bar"].around(next)(watched)
                self.train.train_step(self.run, self.batches, 1e-3)
                self.run.progress.advance(chosen_workload().batch)
                if step % LOG_EVERY == 0:
                    self.train.report(self.run, 1e-3, due=True)
        return time.perf_counter() - began


def seconds_of_children() -> float:
    """The time that processes have computed which this one has started, as some loggers do."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(each.user + each.system for each in times))


def make_tracker(project: Path, options: Any, world: Any) -> Any:
    """Make this rank's tracker of a project that was rendered with another logger than the one that is imported."""
    name = f"ddp_project.runtime.tracking_{project.name}"
    spec = importlib.util.spec_from_file_location(name, project / "ddp_project" / "runtime" / "tracking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_tracker(options, world, 0)
