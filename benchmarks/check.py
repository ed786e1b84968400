"""Measures `ddp-template check`: python -m benchmarks.check. Nothing else should run on the machine meanwhile.

Every measurement is of a new process, in a copy of the working tree that has no cache. The results are written to
benchmarks/results/check.json, from which `ddp-template docs` makes the tables in docs/matrix.md.
"""

import json
import os
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from generator.answers.combinations import shaping_questions
from generator.answers.questions import TEMPLATE
from generator.render.workers import Workers, legal_combinations

from .failures import failures_told
from .machines import machine
from .processes import Ended, run
from .progress import say
from .spaces import candidates, copy_repository, resize

RESULTS = TEMPLATE / "benchmarks" / "results" / "check.json"
COMMAND = Path(sys.executable).with_name("ddp-template")
LOGGER = "partials/tracking/csv.py.jinja"
EDIT = "\n\nEDITED = True\n"  # touches the projects of one logger, and no number that they compute

Record = dict[str, Any]


def main(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE|NAME]...", help="Check only these, as ddp-template check does."),
    ] = None,
    sizes: Annotated[
        str, typer.Option(help="About how many combinations the templates have by which growth is measured.")
    ] = "50,480,2640,5000",
    train_up_to: Annotated[int, typer.Option(help="The largest of these sizes that is trained, too.")] = 500,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure checks cold, cached and after an edit, and how the cost grows with the number of combinations."""
    with Workers() as workers:
        legal = len(legal_combinations(TEMPLATE, workers))
    with failures_told():
        checks = measure_checks(wanted or [])
        whole = None if wanted else checks[0]
        growth = [measure_growth(int(size), legal, train_up_to, whole) for size in sizes.split(",")]
    results = {"date": date.today().isoformat(), "machine": machine(), "checks": checks, "growth": growth}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    typer.echo(f"results: {out}")


def measure_checks(wanted: list[str]) -> list[Record]:
    """Check with nothing known, then again, then after an edit of one logger."""
    with tempfile.TemporaryDirectory() as folder:
        clone = copy_repository(Path(folder) / "clone")
        cold = measure_check(clone, "cold", wanted)
        cached = measure_check(clone, "cached", wanted)
        before, end, after = (clone / LOGGER).read_text().rpartition("{% endblock %}")
        (clone / LOGGER).write_text(before + EDIT + end + after)
        return [cold, cached, measure_check(clone, "edited", wanted)]


def measure_check(clone: Path, name: str, wanted: list[str]) -> Record:
    """Run ddp-template check in a clone, and return what it took. Raises CommandError if it fails."""
    say(f"check, {name}")
    ended = run_in(clone, COMMAND, "check", *wanted, "--json", "check.json")
    report = json.loads((clone / "check.json").read_text())
    return {
        "name": name,
        "combinations": report["counts"]["total"],
        "cached": report["counts"]["cached"],
        "shared": report["counts"]["shared"],
        "wall": round(ended.wall, 2),
        "stages": {stage: round(seconds, 2) for stage, seconds in report["stages"].items()},
        "peak_memory": ended.peak_memory,
    }


def measure_growth(size: int, legal: int, train_up_to: int, whole: Record | None) -> Record:
    """Measure a template of about so many combinations; what a check of the real one took is known already."""
    say(f"growth, {size}")
    with tempfile.TemporaryDirectory() as folder:
        clone = copy_repository(Path(folder) / "clone")
        resize(clone, size, legal)
        ended = run_in(clone, sys.executable, "-m", "benchmarks.stages")
        stages = json.loads(ended.printed.splitlines()[-1])
        combinations, files = stages.pop("combinations"), stages.pop("files")
        check = whole if whole and combinations == legal else None
        if check is None and combinations <= train_up_to:
            shutil.rmtree(clone / ".cache")  # mypy has left its own
            check = measure_check(clone, "cold", [])
        return {
            "combinations": combinations,
            "candidates": candidates(shaping_questions(clone)),
            "files": files,
            "stages": {stage: round(seconds, 2) for stage, seconds in stages.items()},
            "peak_memory": ended.peak_memory,
            "check": check,
        }


def run_in(clone: Path, *command: str | Path) -> Ended:
    """Run a command with the code and the template of a clone."""
    return run(command, clone, {**os.environ, "PYTHONPATH": str(clone), "COLUMNS": "100"})


if __name__ == "__main__":
    typer.run(main)
