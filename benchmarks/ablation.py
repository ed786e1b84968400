"""Measures what each optimisation and some options of the generated project give, and what each guard takes.

python -m benchmarks.ablation: edited copies of the project, and the project with options, run beside it as it is
generated, and clocks run around the guards of its steps.
Nothing else should run on the machine meanwhile. The results go into benchmarks/results/ablation.json.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE

from .contenders.workloads import WORKLOADS
from .edits import ALL, EDITS, OPTIONS
from .failures import failures_told
from .guards import STEPS, measure_guards
from .machines import machine
from .progress import say
from .rounds import Record, compare, play
from .trials import Contender, Trial, render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "ablation.json"
BASELINE = "as generated"
COMPARED = {"ratios": "samples_per_second", "memory": "peak_memory"}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each edited project runs.")] = 5,
    workloads: Annotated[str, typer.Option(help="Which workloads, with commas between; may be empty.")] = ",".join(ALL),
    steps: Annotated[int, typer.Option(help="Train only so many steps (0: as many as the workload has).")] = 0,
    guards: Annotated[bool, typer.Option(help="Measure the guards, too.")] = True,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Run the project with each optimisation taken out, and with options, then steps with clocks around the guards."""
    results: Record = json.loads(out.read_text()) if out.exists() else {}
    if results.get("machine") != machine():
        results = {}
    results |= {"date": date.today().isoformat(), "machine": machine()}
    out.parent.mkdir(parents=True, exist_ok=True)

    def add(part: str, workload: str, found: Record) -> None:
        results.setdefault(part, {})[workload] = found
        out.write_text(json.dumps(results, indent=1) + "\n")

    with failures_told(), tempfile.TemporaryDirectory() as folder:
        for workload in filter(None, workloads.split(",")):
            project = render_project(Path(folder) / workload / "project")
            trial = Trial(workload, WORKLOADS[workload].shortened(steps), Path(sys.executable))
            for found in beside(project, edited(project, workload), trial, rounds):
                add("optimisations", workload, found)
            given = {name: Contender(str(project), options=options) for name, options in OPTIONS.items()}
            for found in beside(project, given, trial, rounds):
                add("options", workload, found)
        for workload, taken in STEPS.items() if guards else ():
            say(f"{workload}, guards")
            add("guards", workload, measure_guards(Path(folder) / "guards" / workload, workload, taken))
    typer.echo(f"results: {out}")


def edited(project: Path, workload: str) -> dict[str, Contender]:
    """Write a copy of a project with each edit that may matter on a workload."""
    chosen = [edit for edit in EDITS if workload in edit.workloads]
    return {edit.name: Contender(str(edit.apply(project, project.with_name(edit.name)))) for edit in chosen}


def beside(project: Path, others: Mapping[str, Contender], trial: Trial, rounds: int) -> Iterator[Record]:
    """Yield what was measured of others, and their ratios to the project as generated, up to each round."""
    contenders = {BASELINE: Contender(str(project)), **others}

    def run(name: str) -> Record:
        say(f"{trial.name}, {name}")
        return trial.run(contenders[name])

    for played in play([*contenders], rounds, run):
        compared = {name: compare(played, BASELINE, what) for name, what in COMPARED.items()}
        yield {"steps": trial.workload.steps, **compared, "rounds": played}


if __name__ == "__main__":
    typer.run(main)
