"""Measures the generated project on one GPU beside a plain loop: python -m benchmarks.gpu.

Both run in turn in float32, TF32 and bfloat16, with and without channels_last, and compiled. Then the trace of
--profile tells how often a step makes the CPU wait for the GPU. The results are in benchmarks/results/gpu.json, from
which `ddp-template docs` makes a table in docs/speed.md.
"""

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from generator.answers.questions import TEMPLATE

from .contenders.recording import RECORDS
from .contenders.workloads import LOG_EVERY, NAME, STEPS, WORKLOADS, Workload
from .failures import failures_told
from .machines import machine
from .progress import say
from .rounds import Record, compare, play
from .trials import finish, measured, render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "gpu.json"
ONE_RANK = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@dataclass(frozen=True)
class Setting:
    """How to compute: an answer to the template, and options of the project and of the plain loop."""

    amp: str
    options: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


SETTINGS = {
    "float32": Setting("none"),
    "TF32": Setting("none", ("--tf32",), ("--tf32",)),
    "TF32, channels last": Setting("none", ("--tf32", "--channels-last"), ("--tf32", "--channels-last")),
    "bfloat16": Setting("torch", (), ("--bf16",)),
    "bfloat16, channels last": Setting("torch", ("--channels-last",), ("--bf16", "--channels-last")),
    "bfloat16, channels last, compiled": Setting(
        "torch", ("--channels-last", "--compile"), ("--bf16", "--channels-last", "--compile")
    ),
}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each runs.")] = 3,
    steps: Annotated[int, typer.Option(help="Train only so many steps (0: as many as the workload has).")] = 0,
    workload: Annotated[str, typer.Option(help="Which network and data.")] = "resnet_gpu",
    device: Annotated[str, typer.Option(help="cpu, with a small workload, tries the benchmark itself.")] = "cuda",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure both in turn with each setting."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here")
    chosen = WORKLOADS[workload].shortened(steps)
    with failures_told(), tempfile.TemporaryDirectory() as folder:
        projects = {amp: render_project(Path(folder) / amp, amp=amp) for amp in ("none", "torch")}
        bench = Bench(device, workload, chosen, projects, Path(folder))
        settings = {name: bench.measure(name, setting, rounds) for name, setting in SETTINGS.items()}
    about = machine() | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})
    results = {"date": date.today().isoformat(), "machine": about, "workload": workload, "settings": settings}
    out.write_text(json.dumps(results, indent=1) + "\n")
    typer.echo(f"results: {out}")


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
        notes: list[dict[str, Any]] = [json.loads((out / "rank0.json").read_text())]
        return measured(notes, self.workload, 0.0), out / "run" / "trace.json.gz"


def waits_of_a_step(trace: Path) -> float:
    """How often the CPU waits for the GPU in a step of a trace, without the last one, where the profile ends."""
    with gzip.open(trace, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    *steps, _ = sorted(
        {(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith("ProfilerStep#")}
    )
    waits = [event["ts"] for event in events if event["name"] in WAITING]
    within = sum(begin <= wait < end for wait in waits for begin, end in steps)
    return float(within / len(steps))


if __name__ == "__main__":
    typer.run(main)
