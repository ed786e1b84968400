"""Measures what each optimisation of the generated project gives, and what each guard takes.

python -m benchmarks.ablation: edited copies of the project run beside it as it is generated, and clocks run around the
guards of its steps.
Nothing else should run on the machine meanwhile. The results go into benchmarks/results/ablation.json.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE

from .contenders.workloads import WORKLOADS
from .edits import ALL, EDITS
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
    """Run the project with each optimisation taken out, then steps with a clock around each guard."""
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
            for found in ablate(workload, steps, rounds, Path(folder) / workload):
                add("optimisations", workload, found)
        for workload, taken in STEPS.items() if guards else ():
            say(f"{workload}, guards")
            add("guards", workload, measure_guards(Path(folder) / "guards" / workload, workload, taken))
    typer.echo(f"results: {out}")


def ablate(workload: str, steps: int, rounds: int, folder: Path) -> Iterator[Record]:
    """Yield what was measured of each edited project, and its ratios to the project as generated.

    Yields that of all rounds up to each round.
    """
    project = render_project(folder / "project")
    projects = {BASELINE: project}
    for edit in EDITS:
        if workload in edit.workloads:
            projects[edit.name] = edit.apply(project, folder / str(len(projects)))
    trial = Trial(workload, WORKLOADS[workload].shortened(steps), Path(sys.executable))

    def run(name: str) -> Record:
        say(f"{workload}, {name}")
        return trial.run(Contender(str(projects[name])))

    for played in play([*projects], rounds, run):
        compared = {name: compare(played, BASELINE, what) for name, what in COMPARED.items()}
        yield {"steps": trial.workload.steps, **compared, "rounds": played}


if __name__ == "__main__":
    typer.run(main)
