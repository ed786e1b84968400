"""What a run reports: log, progress bar, records of the metrics, and a trace. Ranks other than 0 only log warnings."""

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, profiler
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from .. import task
from ..config import Config
from .collectives import on_every_rank
from .exits import UserError
from .launcher import World
from .meter import Progress, Totals
from .tracking import make_tracker

# Steps of a trace: the first ones are not like the others, nor are the profiler's own first ones.
WAIT, WARM_UP, RECORDED = 8, 2, 5

T_co = TypeVar("T_co", covariant=True)


class LogFile(logging.FileHandler):
    """The log in a file. If the disk takes no more, the screen says so once, and the run goes on."""

    reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report a full disk in one line, and other errors as logging does."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.reported:
            self.reported = True
            logging.warning("%s could not be written: %s", self.baseFilename, error.strerror)


def set_up_log(run_dir: Path, world: World, device: torch.device) -> None:
    """Show the log on the screen with time and rank, and keep rank 0's in train.log; other ranks only warn."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if world.is_main:
        handlers.append(LogFile(run_dir / "train.log"))
    log_format = f"%(asctime)s rank {world.rank} %(levelname)s %(message)s"
    logging.basicConfig(level="INFO" if world.is_main else "WARNING", format=log_format, handlers=handlers, force=True)
    logging.info("world size %d, rank 0 on %s, run directory %s", world.world_size, device, run_dir)


def metrics_of(totals: Totals) -> dict[str, float]:
    """Return the metrics to report, as task.py makes them of what was added up: NaN if nothing was.

    Raises UserError if one is no number, or if the one that decides is missing.
    """
    means: dict[str, Any] = {}
    for name, (total, count) in totals.items():
        means[name] = total / (count or math.nan)
    metrics: dict[str, Any] = getattr(task, "summarize", dict)(means)
    for name, value in metrics.items():
        if isinstance(value, Tensor) and value.dim():
            raise UserError(f'task.py: "{name}" has shape {tuple(value.shape)}: let summarize() make a number of it')
    if totals and task.BEST not in metrics:
        raise UserError(f'task.py: BEST is "{task.BEST}", which is none of the metrics: {", ".join(metrics)}')
    return {name: float(value) for name, value in metrics.items()}


class Steps(Protocol[T_co]):
    """Something to iterate over of which the length is known."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


class Reporter:
    """Reports what happens; use it as a context."""

    def __init__(self, config: Config, world: World, progress: Progress) -> None:
        """Begin, or go on after the step of the progress. All ranks call it."""
        self.world = world
        self.tracker = on_every_rank(lambda: make_tracker(config, world, progress.step))
        self.trace = Trace(config.run_dir / "trace.json.gz") if config.profile and world.is_main else None
        self.samples = 0  # trained when the time was taken
        self.started: float | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *error: object) -> None:
        """Write what is still in memory."""
        self.tracker.close()
        if self.trace:
            self.trace.close()

    def watch(self, steps: Steps[T_co], progress: Progress) -> Iterator[T_co]:
        """Iterate over the steps of an epoch and show them as a bar, if someone watches. The log scrolls above it."""
        hidden = not self.world.is_main or not sys.stderr.isatty()
        with nullcontext() if hidden else logging_redirect_tqdm():
            self.started = None
            for step in tqdm(steps, desc=f"epoch {progress.epoch + 1}", leave=False, disable=hidden):
                if self.started is None:  # not before: a checkpoint may have been written meanwhile
                    self.samples, self.started = progress.samples_seen, time.perf_counter()
                try:
                    yield step
                finally:
                    if self.trace:
                        self.trace.step()

    def log_training(self, progress: Progress, lr: float) -> None:
        """Record what was trained since the last record."""
        assert self.started is not None  # watch() has taken the time
        rate = (progress.samples_seen - self.samples) / (time.perf_counter() - self.started)
        self.started = None
        metrics = {f"train/{name}": value for name, value in metrics_of(progress.recent).items()}
        self.tracker.log(progress.step, metrics | {"lr": lr, "samples_per_second": rate})

    def log_evaluation(self, progress: Progress, metrics: dict[str, float]) -> None:
        """Record an epoch: what was trained, and the metrics of the validation set."""
        record: dict[str, float] = {"epoch": progress.epoch + 1}
        record |= {f"epoch/train_{name}": value for name, value in metrics_of(progress.of_epoch).items()}
        record |= {f"epoch/validation_{name}": value for name, value in metrics.items()}
        self.tracker.log(progress.step, record)


class Trace:
    """Records some steps of this rank and writes the trace to a file, in the format of chrome://tracing."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = WAIT + WARM_UP + RECORDED
        self.profile = profiler.profile(
            schedule=profiler.schedule(wait=WAIT, warmup=WARM_UP, active=RECORDED, repeat=1),
            on_trace_ready=self._write,
        )
        self.profile.start()

    def step(self) -> None:
        """Count a step of the optimizer that is complete."""
        if self.left:
            self.left -= 1
            self.profile.step()

    def close(self) -> None:
        """Write what there is of a trace if the run ends before its last step."""
        if self.left:
            self.profile.stop()
        if self.left > RECORDED:  # the profiler had not begun
            logging.warning("no trace: --profile takes %d steps of a start", WAIT + WARM_UP + RECORDED)

    def _write(self, profile: profiler.profile) -> None:
        profile.export_chrome_trace(str(self.file))
        logging.info("trace: %s, to be opened at https://ui.perfetto.dev", self.file)
