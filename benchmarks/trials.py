"""One run of a contender on two processes, and what the notes of its ranks tell."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generator.answers.questions import TEMPLATE
from generator.render.project import render
from generator.render.snapshot import take_snapshot

from .contenders.recording import COUNTING, RECORDS
from .contenders.settings import RANKS
from .contenders.workloads import EPOCHS, LOG_EVERY, NAME, STEPS, Workload
from .failures import CommandError

OVERLAY = TEMPLATE / "benchmarks" / "contenders" / "overlay"
TIMEOUT = 240  # seconds
# The steps of a counting run, and those that are counted: whole intervals of the log, away from any checkpoint.
COUNTED = 35
FIRST, LAST = 11, 31


@dataclass(frozen=True)
class Contender:
    """A program that trains a workload."""

    program: str  # a module of contenders/, or the folder of a generated project
    tuned: bool = False
    options: tuple[str, ...] = ()  # further ones, of a generated project

    def command(self, python: Path, out: Path, workload: Workload) -> list[str | Path]:
        """The command line that trains on two processes."""
        launcher: list[str | Path] = [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={RANKS}",
        ]
        if not Path(self.program).is_absolute():
            module = f"benchmarks.contenders.{self.program}"
            return [*launcher, "-m", module, "--out", out, *(["--tuned"] if self.tuned else [])]
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
        return [*launcher, "train.py", "--device", "cpu", *given, *self.options]


@dataclass(frozen=True)
class Trial:
    """A workload, how long it is trained, and the Python that does it."""

    name: str
    workload: Workload
    python: Path

    def run(self, contender: Contender) -> dict[str, Any]:
        """Train, and return what was measured. Raises CommandError, with the output, if the program fails."""
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            notes = self.train(contender, Path(folder))
            wall = time.monotonic() - started
        return measured(notes, self.workload, started) | {"wall": round(wall, 2)}

    def count(self, contender: Contender) -> dict[str, Any]:
        """Train a few steps, and return what was counted in each, and what is trained with."""
        short = replace(self, workload=replace(self.workload, steps=COUNTED, epochs=1))
        with tempfile.TemporaryDirectory() as folder:
            return counted(short.train(contender, Path(folder), {COUNTING: "1"}))

    def train(self, contender: Contender, out: Path, env: Mapping[str, str] | None = None) -> list[Any]:
        """Train, with all that the program writes in a folder, and return the notes of the ranks."""
        chosen = {NAME: self.name, STEPS: str(self.workload.steps), EPOCHS: str(self.workload.epochs)}
        told = {**os.environ, "PYTHONPATH": str(TEMPLATE), RECORDS: str(out), **chosen, **(env or {})}
        place = Path(contender.program) if Path(contender.program).is_absolute() else out
        finish(contender.command(self.python, out, self.workload), place, told, out / "printed.txt")
        return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def finish(command: Sequence[str | Path], folder: Path, env: Mapping[str, str], output: Path) -> None:
    """Run a command to its end. Raises CommandError, with its output, if it fails or takes too long."""
    with open(output, "w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        raise CommandError(f"{output.read_text()}\nno end after {TIMEOUT} s: {' '.join(map(str, command))}") from None
    finally:
        end_session(process)
    if process.returncode:
        raise CommandError(f"{output.read_text()}\nexit code {process.returncode}: {' '.join(map(str, command))}")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, where any is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measured(notes: Sequence[Mapping[str, Any]], workload: Workload, started: float) -> dict[str, Any]:
    """What the notes of the ranks tell about a run that began at a time."""
    begun = [max(times) for times in zip(*(note["forwards"] for note in notes), strict=True)]
    if len(begun) != workload.steps:
        raise CommandError(f"trained {len(begun)} steps, not {workload.steps}")
    timed = len(begun) - 1 - workload.warm_up
    return {
        "samples_per_second": round(timed * workload.batch / (begun[-1] - begun[workload.warm_up]), 1),
        "to_first_step": round(begun[1] - started, 2),
        "peak_memory": max(note["peak_memory"] for note in notes),
    }


def counted(notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a rank did in each step, the one that did most, and what it trained with."""
    rates = {
        what: round(max((note[what][LAST] - note[what][FIRST]) / (LAST - FIRST) for note in notes), 2)
        for what in ("collectives", "reads")
    }
    return {**rates, "about": notes[0]["about"]}


def check_same(counts: dict[str, dict[str, Any]]) -> None:
    """Raise CommandError where a contender has other weights at the start, other batches or another optimizer."""
    first, *_ = counts
    wanted = trained(counts[first])
    for name, count in counts.items():
        if trained(count) != wanted:
            raise CommandError(f"{name} trains {trained(count)}, and {first} {wanted}")


def trained(count: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for all: a fused optimizer computes the same."""
    about: dict[str, Any] = count["about"]
    optimizer = {name: value for name, value in about["optimizer"].items() if name != "fused"}
    return {**about, "weights": round(about["weights"], 6), "optimizer": optimizer}


def render_project(place: Path, **answers: str) -> Path:
    """Write a project of these answers, with the workload's network and data, and return its folder."""
    with tempfile.TemporaryDirectory() as folder:
        render(place, answers, template=take_snapshot(Path(folder) / "snapshot"))
    for file in ("model.py", "data.py"):
        shutil.copy2(OVERLAY / file, place / "ddp_project" / file)
    return place
