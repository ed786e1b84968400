"""Compares the generated project with other ways to train: python -m benchmarks.speed.

Nothing else should run on the machine meanwhile. All train the same network on the same data with the same optimizer,
on two Gloo processes of this machine. In each round every contender runs once. What is measured goes into
benchmarks/results/speed.json, beside what was measured there of other workloads on the same machine.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE
from tools.docs.speed import BASELINE, FRAMEWORKS, TUNED

from .contenders.workloads import ON_CPUS, WORKLOADS
from .failures import CommandError, failures_told
from .machines import machine
from .peers import peers_python, pinned_versions
from .progress import say
from .rounds import Record, compare, play
from .trials import Contender, Trial, check_same, render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "speed.json"
PEERS = ("tutorial", *FRAMEWORKS)
NAMES = (BASELINE, "bare_tuned", "generated", *(name for peer in PEERS for name in (peer, peer + TUNED)))
MEASURED = ("samples_per_second", "to_first_step", "wall", "peak_memory")
TRIES = 3  # of a run, since contenders can abort or hang when they end


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender runs.")] = 5,
    workloads: Annotated[str, typer.Option(help="Which workloads, with commas between.")] = ",".join(ON_CPUS),
    contenders: Annotated[str, typer.Option(help=f"Which contenders, beside {BASELINE}.")] = ",".join(NAMES),
    steps: Annotated[int, typer.Option(help="Train only so many steps (0: as many as the workload has).")] = 0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure samples per second, time to the first step, wall time, memory, collectives and host reads."""
    names = [*dict.fromkeys((BASELINE, *contenders.split(",")))]
    check_known("workload", workloads.split(","), WORKLOADS)
    check_known("contender", names, NAMES)
    with failures_told():
        python = peers_python()
        with tempfile.TemporaryDirectory() as folder:
            project = render_project(Path(folder) / "project")
            programs = {name: contender(name, project) for name in names}
            for workload in workloads.split(","):
                trial = Trial(workload, WORKLOADS[workload].shortened(steps), python)
                for measured in measure(trial, programs, rounds):  # after each round: so no interruption loses more
                    add_to_results(out, workload, measured)
    typer.echo(f"results: {out}")


def check_known(what: str, given: Iterable[str], choices: Container[str]) -> None:
    """Raise BadParameter where something is asked for that there is not."""
    for name in given:
        if name not in choices:
            raise typer.BadParameter(f"there is no {what} {name}")


def contender(name: str, project: Path) -> Contender:
    """The program of a name."""
    if name == "generated":
        return Contender(str(project))
    return Contender(BASELINE if name == "bare_tuned" else name.removesuffix(TUNED), tuned=name.endswith(TUNED))


def measure(trial: Trial, programs: dict[str, Contender], rounds: int) -> Iterator[Record]:
    """Yield what was measured of a workload up to each round.

    Raises CommandError if a contender fails, or trains something else.
    """
    say(f"{trial.name}, what each step does")
    # It comes first: so no run that is timed is the one that compiles Python files or reads libraries from the disk.
    counts = {name: tried(partial(trial.count, program)) for name, program in programs.items()}
    check_same(counts)

    def run(name: str) -> Record:
        say(f"{trial.name}, {name}")
        return tried(partial(trial.run, programs[name]))

    for played in play([*programs], rounds, run):
        ratios = compare(played, BASELINE, "samples_per_second")
        contenders = {name: summary(played[name], counts[name]) | {"ratio": ratios[name]} for name in played}
        yield {"steps": trial.workload.steps, "batch": trial.workload.batch, "contenders": contenders}


def summary(records: list[Record], counts: Record) -> Record:
    """Return the medians of a contender's rounds, what was counted of it, and its rounds."""
    return {
        **{what: statistics.median(record[what] for record in records) for what in MEASURED},
        "collectives": counts["collectives"],
        "reads": counts["reads"],
        "failures": sum(record["failures"] for record in (counts, *records)),
        "rounds": records,
    }


def tried(run: Callable[[], Record]) -> Record:
    """Return what a run gives, and how often it failed before. Raises CommandError if it always fails."""
    for failures in range(TRIES - 1):
        try:
            return run() | {"failures": failures}
        except CommandError as error:
            typer.echo(error, err=True)
    return run() | {"failures": TRIES - 1}


def add_to_results(out: Path, workload: str, measured: Record) -> None:
    """Write the results of a workload beside those of others, in place of earlier ones: ratios are of one round."""
    about = {"machine": machine(), "peers": pinned_versions()}
    found = json.loads(out.read_text()) if out.exists() else {}
    # What another machine or other versions gave cannot stand in the same table.
    workloads = found["workloads"] if all(found.get(name) == value for name, value in about.items()) else {}
    results = {"date": date.today().isoformat(), **about, "workloads": {**workloads, workload: measured}}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
