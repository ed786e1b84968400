"""Times what a check does before it trains, without anything beside it: python -m benchmarks.stages, in a clone."""

import json
import time
from contextlib import ExitStack

import typer

from generator.checking import Check, State
from generator.combinations import legal_combinations, shaping_questions
from generator.questions import TEMPLATE
from generator.results import Verdict
from generator.scratch import remove, working_folder
from generator.static import distinct
from generator.workers import Workers


def measure() -> dict[str, float]:
    """Ask Copier about every combination, render all that are legal, and let black, ruff and mypy read them.

    Gives the seconds of each of these, and how many combinations and different Python files there are. Raises
    RuntimeError where anything is wrong with a project.
    """
    started = time.perf_counter()
    with Workers() as workers, working_folder(2**32) as folder, ExitStack() as stack:
        combinations = legal_combinations(TEMPLATE, workers)
        asked = time.perf_counter()
        verdict = Verdict([], shaping_questions())
        state = State(Check(combinations, cache=None), folder, workers, verdict, stack)
        state.render()
        state.recall()
        rendered = time.perf_counter()
        state.end_static(state.begin_static())
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
