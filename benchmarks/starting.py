"""Measures how long a generated project takes to start and to end: python -m benchmarks.starting.

Each command runs in turn as the project has it, and with each of the edits that take an optimisation out. The results
are in benchmarks/results/starting.json, from which `ddp-template docs` makes a table in docs/speed.md. Nothing else
should run on the machine meanwhile.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE
from generator.render.project import render
from generator.render.snapshot import take_snapshot
from tools.rewriting import Rewrite

from .clock import seconds_of
from .edits import Edit
from .failures import failures_told
from .machines import machine

RESULTS = TEMPLATE / "benchmarks" / "results" / "starting.json"
ALONE = [sys.executable, "train.py"]
ON_TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
FEW_STEPS = ["--device", "cpu", "--max-steps", "3", "--eval-every", "100"]
COMMANDS = {
    "`--help`": ([*ALONE, "--help"], 0),
    "an option that does not exist": ([*ALONE, "--lrr", "1"], 2),
    "three steps, one process": ([*ALONE, *FEW_STEPS], 0),
    "three steps, torchrun with two": ([*ON_TWO, *FEW_STEPS], 0),
}
AS_GENERATED = "as generated"
EDITS = (
    Edit("options read after torch is imported", "train.py", Rewrite("CONFIG = $X", "import torch._dynamo\n{}")),
    Edit("garbage collected while importing", "runtime/launcher.py", Rewrite("gc.disable()", "gc.enable()")),
    Edit("what was imported not frozen", "runtime/process_group.py", Rewrite("gc.freeze()", "")),
)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each command runs.")] = 9,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure the commands with each edit in turn."""
    with failures_told(), tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot"))
        projects = {AS_GENERATED: project}
        projects |= {edit.name: edit.apply(project, Path(folder) / str(i)) for i, edit in enumerate(EDITS)}
        seconds: dict[str, dict[str, list[float]]] = {name: {what: [] for what in COMMANDS} for name in projects}
        for number in range(rounds + 1):
            for what, (command, code) in COMMANDS.items():
                for name, place in projects.items():
                    shutil.rmtree(place / "runs", ignore_errors=True)
                    taken = seconds_of(command, place, os.environ, code)
                    if number:  # the first round writes the bytecode
                        seconds[name][what].append(taken)
    medians = {
        name: {what: round(statistics.median(taken), 3) for what, taken in of_project.items()}
        for name, of_project in seconds.items()
    }
    results = {"date": date.today().isoformat(), "machine": machine(), "medians": medians, "seconds": seconds}
    out.write_text(json.dumps(results, indent=1) + "\n")
    typer.echo(json.dumps(medians, indent=1))


if __name__ == "__main__":
    typer.run(main)
