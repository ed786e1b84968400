"""Measures the generated project on one GPU, compared with a plain loop.

Both run in turn in float32, TF32 and bfloat16, with and without channels_last, and compiled. Then the trace of
--profile tells how often a step makes the CPU wait for the GPU. Another start measures what is missing.
"""

import gzip
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import torch

from . import runner
from .contenders.workloads import LOG_EVERY, NAME, STEPS, WORKLOADS, Workload
from .runner import RESULTS, CommandError, Record, in_turn, read
from .trials import TORCHRUN, render_project, train_recorded

CALLS = ("cuda_runtime", "cuda_driver")  # categories of what the CPU asks of the GPU
# What waits for the GPU: a copy that is not asynchronous, and memory that is taken or given back.
WAITING = re.compile(r"Synchronize$|^cuda(Memcpy|Malloc|MallocHost|HostAlloc|Free|FreeHost)$|^cuMem(Create|Map|Unmap)$")


@dataclass(frozen=True)
class Setting:
    """How to compute: an answer to the template, and options of the project and of the plain loop."""

    amp: str
    options: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


SETTINGS = {
    "float32": Setting("none", ("--precision", "float32")),
    # What amp=none chooses.
    "TF32 convolutions": Setting("none", ("--precision", "tf32-convolutions"), ("--tf32-convolutions",)),
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


@dataclass
class Benchmark(runner.Benchmark):
    """Samples per second of the project and of a plain loop, and how often a step of the project waits."""

    setting: tuple[str, ...] = tuple(SETTINGS)
    """Measure these."""
    fresh: bool = False
    """Measure again what was measured before."""
    rounds: int = 2
    steps: int = 0
    """Train only this many steps (0: as many as the workload has)."""
    workload: str = "resnet_gpu"
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu, with a small workload, tries the benchmark itself."""

    key: ClassVar = ("setting",)

    def machine(self) -> Record:
        """Return the machine, its GPU and the workload."""
        gpu = {"gpu": torch.cuda.get_device_name()} if self.device == "cuda" else {}
        return runner.machine() | gpu | {"workload": self.workload}

    def missing(self) -> list[str]:
        """Return the chosen settings that have no results of this machine yet. Raises CommandError for unknown ones."""
        if unknown := [name for name in self.setting if name not in SETTINGS]:
            raise CommandError(f"there is no setting {unknown[0]}: choose of {'; '.join(SETTINGS)}")
        found = read(self.out or RESULTS / "gpu.json")
        same = not self.fresh and found and found["machine"] == self.machine()
        known = {record["setting"] for record in found["measurements"]} if same else set()
        return [name for name in self.setting if name not in known]

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of each setting that is missing."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CommandError("there is no GPU here")
        chosen, workload = self.missing(), WORKLOADS[self.workload].shortened(self.steps)
        projects = {amp: render_project(folder / amp, amp=amp) for amp in {SETTINGS[name].amp for name in chosen}}
        given = {"epochs": workload.epochs, "global-batch-size": workload.batch, "eval-every": workload.epochs}
        given |= {"log-every": LOG_EVERY}
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        for name in chosen:
            setting, out = SETTINGS[name], folder / name
            commands = {
                "plain": ["-m", "benchmarks.contenders.bare_gpu", *setting.bare],
                "generated": ["train.py", *options, *setting.options, "--run-dir", str(out / "run")],
            }
            commands = {who: [*command, "--device", self.device] for who, command in commands.items()}
            train = partial(self.train, project=projects[setting.amp], out=out, workload=workload)
            *_, found = in_turn({who: partial(train, command) for who, command in commands.items()}, self.rounds)
            train([*commands["generated"], "--profile", "--log-every", "1000"])
            found["generated"]["waits_of_a_step"] = waits_of_a_step(out / "run" / "trace.json.gz")
            yield [{"setting": name, "contender": who, **numbers} for who, numbers in found.items()]

    def train(self, command: Sequence[str], project: Path, out: Path, workload: Workload) -> Record:
        """Train in an empty folder, and return the samples per second."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        env = {NAME: self.workload, STEPS: str(workload.steps)}
        command = [sys.executable, *TORCHRUN, "--nproc-per-node=1", *command]
        [notes] = train_recorded(command, project, out, env, 1)
        return {"samples_per_second": rate(notes["forwards"], workload)}


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
    """How often the CPU waits for the GPU in a step of a trace, or may have to; the last one ends with the profile."""
    events = read_trace(trace)
    # The GPU's side of a trace repeats the names of the steps, at other times.
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    *steps, _ = sorted(
        (mark["ts"], mark["ts"] + mark["dur"]) for mark in marks if mark["name"].startswith("ProfilerStep#")
    )
    calls = [event for event in events if event.get("cat") in CALLS]
    waits = [call["ts"] for call in calls if WAITING.search(call["name"])]
    within = sum(begin <= wait < end for wait in waits for begin, end in steps)
    return float(within / len(steps))
