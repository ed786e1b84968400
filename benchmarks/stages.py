"""Times what a check does before it trains, without anything beside it: python -m benchmarks.stages, in a clone."""

import json
import time
from contextlib import ExitStack

import typer

from generator.answers.questions import TEMPLATE
from generator.check.pipeline import begin_reading, render, take_complaints
from generator.check.state import CheckOptions, CheckState
from generator.check.static import distinct
from generator.render.scratch import remove, scratch_folder
from generator.render.workers import Workers, legal_combinations


def measure() -> dict[str, float]:
    """Ask Copier about every combination, render all that are legal, and let black, ruff and mypy read them.

    Returns the seconds of each of these, and how many combinations and different Python files there are. Raises
    RuntimeError where anything is wrong with a project.
    """
    started = time.perf_counter()
    with Workers() as workers, scratch_folder(2**32, keep=True) as folder, ExitStack() as stack:
        combinations = legal_combinations(TEMPLATE, workers)
        asked = time.perf_counter()
        state = CheckState(CheckOptions(combinations, cache=None), folder, workers, stack)
        render(state)
        rendered = time.perf_counter()
        reading = begin_reading(state)
        take_complaints(state, reading)
        read = time.perf_counter()
        files = distinct(file for files in state.sources.values() for file in files)
        remove(folder)
    wrong = [failure for outcome in state.outcomes.values() for failure in outcome.failures]
    if wrong:
        raise RuntimeError(f"{len(wrong)} failures, such as {wrong[0].stage}: {wrong[0].text}")
    seconds = {"enumerate": asked - started, "render": rendered - asked, "static": read - rendered}
    return {"combinations": len(combinations), "files": len(files), **seconds}


def main() -> None:
    """Print the measurements as JSON."""
    typer.echo(json.dumps(measure()))


if __name__ == "__main__":
    main()
