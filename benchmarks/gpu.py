"""Measures the generated project on one GPU beside a plain loop: python -m benchmarks.gpu.

Both run in turn in float32, TF32 and bfloat16, with and without channels_last, and compiled. Then the trace of
--profile tells how often a step makes the CPU wait for the GPU. The results are in benchmarks/results/gpu.json after
each setting, from which `ddp-template docs` makes a table in docs/speed.md; another start measures what is missing.
"""

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import torch
import typer

from generator.answers.questions import TEMPLATE

from .contenders.recording import RECORDS
from .contenders.workloads import LOG_EVERY, NAME, STEPS, WORKLOADS, Workload
from .failures import CommandError, failures_told
from .machines import machine
from .progress import say
from .rounds import Record, compare, play
from .trials import finish, render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "gpu.json"
ONE_RANK = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
CALLS = ("cuda_runtime", "cuda_driver")  # categories of what the CPU asks of the GPU


@dataclass(frozen=True)
class Setting:
    """How to compute: an answer to the template, and options of the project and of the plain loop."""

    amp: str
    options: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


SETTINGS = {
    "float32": Setting("none", ("--precision", "float32")),
    "TF32 convolutions": Setting("none", ("--precision", "tf32-convolutions"), ("--tf32-convolutions",)),  # the default
    "TF32": Setting("none", ("--precision", "tf32"), ("--tf32",)),
    "TF32, channels last": Setting("none", ("--precision", "tf32", "--channels-last"), ("--tf32", "--channels-last")),
    "bfloat16": Setting("torch", ("--precision", "bf16"), ("--bf16",)),
    "bfloat16, channels last": Setting(
        "torch", ("--precision", "bf16", "--channels-last"), ("--bf16", "--channels-last")
    ),
    "bfloat16, channels last, compiled": Setting(
        "torch", ("--precision", "bf16", "--channels-last", "--compile"), ("--bf16", "--channels-last", "--compile")
    ),
}


def main(
    setting: Annotated[
        list[str], typer.Option(help="Measure this one; may be repeated (default: all).")
    ] = [],  # noqa: B006
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each runs.")] = 2,
    steps: Annotated[int, typer.Option(help="Train only so many steps (0: as many as the workload has).")] = 0,
    workload: Annotated[str, typer.Option(help="Which network and data.")] = "resnet_gpu",
    device: Annotated[str, typer.Option(help="cpu, with a small workload, tries the benchmark itself.")] = "cuda",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure both in turn with each setting that has no results yet."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here")
    if unknown := [name for name in setting if name not in SETTINGS]:
        raise typer.BadParameter(f"there is no setting {unknown[0]}: choose of {'; '.join(SETTINGS)}")
    about = machine() | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})
    results = Results(out, {"machine": about, "workload": workload})
    chosen = [name for name in setting or SETTINGS if fresh or name not in results.settings]
    with failures_told(), tempfile.TemporaryDirectory() as folder:
        projects = {amp: render_project(Path(folder) / amp, amp=amp) for amp in {SETTINGS[name].amp for name in chosen}}
        bench = Bench(device, workload, WORKLOADS[workload].shortened(steps), projects, Path(folder))
        for name in chosen:
            results.add(name, bench.measure(name, SETTINGS[name], rounds))
    typer.echo(f"results: {out}")


class Results:
    """What was measured on this machine with this workload, in a file that is whole at any time."""

    def __init__(self, file: Path, about: Record) -> None:
        """Go on with a file, unless it is about something else."""
        self.file, self.about = file, about
        found = json.loads(file.read_text()) if file.exists() else {}
        self.settings: Record = found["settings"] if about.items() <= found.items() else {}

    def add(self, name: str, record: Record) -> None:
        """Write the results with those of a setting."""
        self.settings[name] = record
        ordered = {known: self.settings[known] for known in SETTINGS if known in self.settings}
        written = {"date": date.today().isoformat(), **self.about, "settings": ordered}
        self.file.with_suffix(".tmp").write_text(json.dumps(written, indent=1) + "\n")
        self.file.with_suffix(".tmp").replace(self.file)


@dataclass
class Bench:
    """What all measurements have in common."""

    device: str
    name: str
    workload: Workload
    projects: Mapping[str, Path]
    folder: Path
    runs: int = 0

    def measure(self, name: str, setting: Setting, rounds: int) -> Record:
        """Run the project and the plain loop in turn, then the project with a profile."""
        say(name)
        project = self.projects[setting.amp]
        commands = {
            "plain": ["-m", "benchmarks.contenders.bare_gpu", "--device", self.device, *setting.bare],
            "generated": ["train.py", *self.options(), *setting.options],
        }
        *_, played = play([*commands], rounds, lambda who: self.train(commands[who], project)[0])
        _, trace = self.train([*commands["generated"], "--profile", "--log-every", "1000"], project)
        rates = {who: [record["samples_per_second"] for record in records] for who, records in played.items()}
        ratio = compare(played, "plain", "samples_per_second")["generated"]
        return {"samples_per_second": rates, "ratio": ratio, "waits_of_a_step": waits_of_a_step(trace)}

    def options(self) -> list[str]:
        """The options of the generated project."""
        epochs = self.workload.epochs
        given: dict[str, object] = {"epochs": epochs, "global-batch-size": self.workload.batch, "eval-every": epochs}
        given |= {"log-every": LOG_EVERY, "device": self.device}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def train(self, command: list[str], project: Path) -> tuple[Record, Path]:
        """Train, and return what was measured, and where the trace would be."""
        self.runs += 1
        out = self.folder / f"run{self.runs}"
        out.mkdir()
        env = {**os.environ, "PYTHONPATH": str(TEMPLATE), RECORDS: str(out), NAME: self.name}
        env[STEPS] = str(self.workload.steps)
        options = ["--run-dir", str(out / "run")] if command[0] == "train.py" else []
        finish([*ONE_RANK, *command, *options], project, env, out / "printed.txt")
        forwards = json.loads((out / "rank0.json").read_text())["forwards"]
        return {"samples_per_second": rate(forwards, self.workload)}, out / "run" / "trace.json.gz"


def rate(forwards: Sequence[float], workload: Workload) -> float:
    """Samples per second, from when each step's forward pass began on the CPU.

    The first and the last step that count come right after a report, which waits for the GPU: the CPU runs ahead else.
    """
    if len(forwards) != workload.steps:
        raise CommandError(f"trained {len(forwards)} steps, not {workload.steps}")
    first, last = (step // LOG_EVERY * LOG_EVERY for step in (workload.warm_up, workload.steps - 1))
    if first == last:
        raise CommandError(f"{workload.steps} steps are too few: give --steps {3 * LOG_EVERY} or more")
    return round((last - first) * workload.batch / (forwards[last] - forwards[first]), 1)


def read_trace(trace: Path) -> list[Record]:
    """The events of a trace that last."""
    with gzip.open(trace, "rt") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def waits_of_a_step(trace: Path) -> float:
    """How often the CPU waits for the GPU in a step of a trace, without the last one, where the profile ends."""
    events = read_trace(trace)
    # The GPU's side of a trace repeats the names of the steps, at other times.
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    *steps, _ = sorted(
        (mark["ts"], mark["ts"] + mark["dur"]) for mark in marks if mark["name"].startswith("ProfilerStep#")
    )
    calls = [event for event in events if event.get("cat") in CALLS]
    waits = [call["ts"] for call in calls if call["name"].endswith("Synchronize")]
    within = sum(begin <= wait < end for wait in waits for begin, end in steps)
    return float(within / len(steps))


if __name__ == "__main__":
    typer.run(main)
