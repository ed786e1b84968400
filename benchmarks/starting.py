"""Measures how long a generated project takes to start and to end, with each optimization of it taken out."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.rewriting import Rewrite

from . import runner
from .ablation import BASELINE, GROUP, Edit
from .runner import Record, in_turn, new_project, seconds_of
from .trials import TORCHRUN

FEW_STEPS = ["--device", "cpu", "--max-steps", "3", "--eval-every", "100"]
COMMANDS = {
    "`--help`": (["train.py", "--help"], 0),
    "an option that does not exist": (["train.py", "--lrr", "1"], 2),
    "three steps, one process": (["train.py", *FEW_STEPS], 0),
    "three steps, torchrun with two": ([*TORCHRUN, "--nproc-per-node=2", "train.py", *FEW_STEPS], 0),
}
EDITS = (
    Edit("options read after torch is imported", "train.py", Rewrite("CONFIG = $X", "import torch._dynamo\n{}")),
    Edit("garbage collected while importing", "runtime/launcher.py", Rewrite("gc.disable()", "gc.enable()")),
    Edit("what was imported not frozen", GROUP, Rewrite("gc.freeze()", "")),
)


@dataclass
class Benchmark(runner.Benchmark):
    """The seconds from the start of a command to its end."""

    rounds: int = 9

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Run the commands with each edit in turn; the first round writes the bytecode."""
        project = new_project(folder / "project")
        projects = {BASELINE: project} | {edit.name: edit.apply(project, folder / edit.name) for edit in EDITS}
        runs = {name: partial(run_commands, place) for name, place in projects.items()}
        *_, found = in_turn(runs, self.rounds, warm_up=1)
        yield [
            {"edit": name, "command": command, "seconds": [round(seconds, 3) for seconds in numbers]}
            for name, commands in found.items()
            for command, numbers in commands.items()
        ]


def run_commands(project: Path) -> Record:
    """Return the seconds of each command."""
    taken = {}
    for what, (command, code) in COMMANDS.items():
        shutil.rmtree(project / "runs", ignore_errors=True)
        taken[what] = seconds_of(partial(runner.run, [sys.executable, *command], project, code=code))
    return taken
