"""Runs of a contender on two processes, and what its ranks record."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generator.answers.questions import TEMPLATE

from .contenders.recording import COUNTING, RECORDS
from .contenders.settings import RANKS
from .contenders.workloads import EPOCHS, LOG_EVERY, NAME, STEPS, Workload
from .runner import CommandError, Record, new_project

OVERLAY = TEMPLATE / "benchmarks" / "contenders" / "overlay"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
TIMEOUT = 240  # seconds
# The steps of a counting run, and those that are counted: whole intervals of the log, away from any checkpoint.
COUNTED, FIRST, LAST = 35, 11, 31


@dataclass(frozen=True)
class Contender:
    """A program that trains a workload."""

    program: str  # a module of contenders/, or the folder of a generated project
    tuned: bool = False
    options: tuple[str, ...] = ()  # further ones, of a generated project

    def command(self, out: Path, workload: Workload) -> list[str | Path]:
        """Return what torchrun starts."""
        if not Path(self.program).is_absolute():
            tuned = ["--tuned"] if self.tuned else []
            return ["-m", f"benchmarks.contenders.{self.program}", "--out", out, *tuned]
        options = {
            "epochs": workload.epochs,
            "global-batch-size": workload.batch,
            "lr": workload.lr,
            "weight-decay": workload.weight_decay,
            "warmup-steps": 0,
            "log-every": LOG_EVERY,
            "save-every": workload.steps_of_epoch,
            "eval-every": workload.epochs,
            "run-dir": out / "run",
        }
        given = (word for name, value in options.items() for word in (f"--{name}", str(value)))
        return ["train.py", "--device", "cpu", *given, *self.options]


@dataclass(frozen=True)
class Trial:
    """A workload, how long it is trained, and the Python that does it."""

    name: str
    workload: Workload
    python: Path = Path(sys.executable)

    def run(self, contender: Contender) -> Record:
        """Train, and return what was measured. Raises CommandError, with the output, if the program fails."""
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            notes = self.train(contender, Path(folder))
            return measured(notes, self.workload, started) | {"wall": round(time.monotonic() - started, 2)}

    def count(self, contender: Contender) -> Record:
        """Train a few steps, and return the counts of a step, and what is trained with."""
        short = replace(self, workload=replace(self.workload, steps=COUNTED, epochs=1))
        with tempfile.TemporaryDirectory() as folder:
            return counted(short.train(contender, Path(folder), {COUNTING: "1"}))

    def train(self, contender: Contender, out: Path, env: Mapping[str, str] | None = None) -> list[Any]:
        """Train, with all that the program writes in a folder, and return the notes of the ranks."""
        chosen = {NAME: self.name, STEPS: str(self.workload.steps), EPOCHS: str(self.workload.epochs)}
        place = Path(contender.program) if Path(contender.program).is_absolute() else out
        command = [self.python, *TORCHRUN, f"--nproc-per-node={RANKS}", *contender.command(out, self.workload)]
        return train_recorded(command, place, out, chosen | dict(env or {}), RANKS)


def train_recorded(
    command: Sequence[str | Path], folder: Path, out: Path, env: Mapping[str, str], ranks: int
) -> list[Any]:
    """Run a contender to its end, and return the notes of its ranks.

    Raises CommandError, with its output, if it fails or takes too long.
    """
    env = {**os.environ, "PYTHONPATH": str(TEMPLATE), RECORDS: str(out), **env}
    with open(out / "printed.txt", "w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        ended = f"exit code {process.wait(TIMEOUT)}"
    except subprocess.TimeoutExpired:
        ended = f"no end after {TIMEOUT} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if ended != "exit code 0":
        raise CommandError(f"{(out / 'printed.txt').read_text()}\n{ended}: {' '.join(map(str, command))}")
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def measured(notes: Sequence[Mapping[str, Any]], workload: Workload, started: float) -> Record:
    """Return what the notes of the ranks tell about a run that began at a time."""
    begun = [max(times) for times in zip(*(note["forwards"] for note in notes), strict=True)]
    if len(begun) != workload.steps:
        raise CommandError(f"trained {len(begun)} steps, not {workload.steps}")
    timed = len(begun) - 1 - workload.warm_up
    return {
        "samples_per_second": round(timed * workload.batch / (begun[-1] - begun[workload.warm_up]), 1),
        "to_first_step": round(begun[1] - started, 2),
        "peak_memory": max(note["peak_memory"] for note in notes),
    }


def counted(notes: Sequence[Mapping[str, Any]]) -> Record:
    """Return the counts of a step on the rank with the most, and what it trained with."""
    rates = {
        what: round(max((note[what][LAST] - note[what][FIRST]) / (LAST - FIRST) for note in notes), 2)
        for what in ("collectives", "reads")
    }
    return {**rates, "about": notes[0]["about"]}


def check_same(counts: dict[str, Record]) -> None:
    """Raise CommandError if a contender has other weights at the start, other batches or another optimizer."""
    first, *_ = counts
    wanted = trained(counts[first])
    for name, count in counts.items():
        if trained(count) != wanted:
            raise CommandError(f"{name} trains {trained(count)}, and {first} {wanted}")


def trained(count: Record) -> Record:
    """Return what must be the same for all: a fused optimizer computes the same."""
    about: Record = count["about"]
    optimizer = {name: value for name, value in about["optimizer"].items() if name != "fused"}
    return {**about, "weights": round(about["weights"], 6), "optimizer": optimizer}


def render_project(place: Path, **answers: str) -> Path:
    """Render a project with the network and the data of the workload, and return its folder."""
    new_project(place, **answers)
    for file in ("model.py", "data.py"):
        shutil.copy2(OVERLAY / file, place / "ddp_project" / file)
    return place
