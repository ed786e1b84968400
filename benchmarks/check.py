"""Measures `ddp-template check`: with nothing known, again, after an edit, and with more and more combinations.

Every measurement is of a new process, in a copy of the working tree that has no cache.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from tyro.conf import Positional

from generator.answers.combinations import shaping_questions
from generator.answers.questions import TEMPLATE, Question
from generator.check.pipeline import begin_reading, render, take_complaints
from generator.check.state import CheckOptions, CheckState
from generator.check.static import distinct
from generator.render.scratch import remove, scratch_folder
from generator.render.snapshot import PARTS
from generator.render.workers import Workers, legal_combinations

from . import runner
from .runner import CommandError, Record, say

COMMAND = Path(sys.executable).with_name("ddp-template")
STAGES = (sys.executable, "-c", "from benchmarks.check import print_stages; print_stages()")
LOGGER = "partials/tracking/csv.py.jinja"
EDIT = "\n\nEDITED = True\n"  # touches the projects of one logger, and no number that they compute
EXTRA = "extra"  # the question that is added to a template with more combinations
COMMENTED = "template/train.py.jinja"  # the file that tells its answer: the one that differs most between projects
INTERVAL = 0.05  # seconds between two looks at the memory of processes


@dataclass
class Benchmark(runner.Benchmark):
    """The cost of a check in different states of its cache, and its growth with the number of combinations."""

    wanted: Positional[tuple[str, ...]] = ()
    """Check only these, as ddp-template check does: KEY=VALUE or names."""
    sizes: tuple[int, ...] = (50, 480, 2640, 5000)
    """About how many combinations the templates have by which growth is measured."""
    train_up_to: int = 500
    """The largest of these sizes that is trained, too."""

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield all records at the end: they are of one state of the template."""
        with Workers() as workers:
            legal = len(legal_combinations(TEMPLATE, workers))
        clone = copy_repository(folder / "clone")
        records = [self.check(clone, name) for name in ("cold", "cached")]
        before, end, after = (clone / LOGGER).read_text().rpartition("{% endblock %}")
        (clone / LOGGER).write_text(before + EDIT + end + after)
        records.append(self.check(clone, "edited"))
        for size in self.sizes:
            say(f"growth, {size}")
            clone = copy_repository(folder / str(size))
            resize(clone, size, legal)
            printed, _, peak = run_watched(clone, *STAGES)
            growth = json.loads(printed.splitlines()[-1])
            choices = candidates(shaping_questions(clone))
            records.append({"part": "growth", **growth, "candidates": choices, "peak_memory": peak})
            if growth["combinations"] <= self.train_up_to:
                shutil.rmtree(clone / ".cache")  # mypy has left its own
                records.append(self.check(clone, "resized"))
        yield records

    def check(self, clone: Path, state: str) -> Record:
        """Run ddp-template check in a clone. Raises CommandError if it fails."""
        say(f"check, {state}")
        wanted = () if state == "resized" else self.wanted
        _, wall, peak = run_watched(clone, COMMAND, "check", *wanted, "--json", "check.json")
        report = json.loads((clone / "check.json").read_text())
        counts = {"combinations": report["counts"]["total"]}
        counts |= {name: report["counts"][name] for name in ("cached", "shared")}
        stages = {stage: round(seconds, 2) for stage, seconds in report["stages"].items()}
        return {"part": "check", "state": state, **counts, "wall": round(wall, 2), "peak_memory": peak, **stages}


def run_watched(clone: Path, *command: str | Path) -> tuple[str, float, int]:
    """Run a command with the code and the template of a clone. Raises CommandError if it fails.

    Returns what it printed, its seconds, and the largest sum of the resident sets of its processes.
    """
    output, started, peak = clone / "printed.txt", time.perf_counter(), 0
    env = {**os.environ, "PYTHONPATH": str(clone), "COLUMNS": "100"}
    with open(output, "w") as file:
        process = subprocess.Popen(command, cwd=clone, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(INTERVAL)
    finally:
        process.terminate()  # which does nothing if it has ended
        process.wait()
    if process.returncode:
        raise CommandError(output.read_text())
    return output.read_text(), time.perf_counter() - started, peak


def resident(pid: int) -> int:
    """Return the memory of a process and of all that it has started; shared pages count for each."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def print_stages() -> None:
    """Time what a check of this working tree does before it trains: ask Copier, render, and run the static tools.

    Prints the seconds, and how many combinations and different Python files there are, as JSON. Raises RuntimeError if
    anything is wrong with a project.
    """
    times = [time.perf_counter()]
    with Workers() as workers, scratch_folder(2**32, keep=True) as folder, ExitStack() as stack:
        combinations = legal_combinations(TEMPLATE, workers)
        times.append(time.perf_counter())
        state = CheckState(CheckOptions(combinations, cache=None), folder, workers, stack)
        render(state)
        times.append(time.perf_counter())
        take_complaints(state, begin_reading(state))
        times.append(time.perf_counter())
        files = distinct(file for files in state.sources.values() for file in files)
        remove(folder)
    wrong = [failure for outcome in state.outcomes.values() for failure in outcome.failures]
    if wrong:
        raise RuntimeError(f"{len(wrong)} failures, such as {wrong[0].stage}: {wrong[0].text}")
    stages = zip(("enumerate", "render", "static"), times, times[1:], strict=False)
    seconds = {stage: round(end - begin, 2) for stage, begin, end in stages}
    print(json.dumps({"combinations": len(combinations), "files": len(files), **seconds}))


def copy_repository(place: Path) -> Path:
    """Copy the working tree's template and code into a new folder, without any cache, and return that folder."""
    place.mkdir(parents=True)
    for part in (*PARTS, "generator", "benchmarks"):
        if (TEMPLATE / part).is_dir():
            shutil.copytree(TEMPLATE / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(TEMPLATE / part, place / part)
    return place


def resize(clone: Path, size: int, legal: int) -> None:
    """Give the template of a clone about this many legal combinations, from the number that it has."""
    settings: dict[str, Any] = yaml.safe_load((clone / "copier.yml").read_text())
    if size < legal:  # take choices away, always from the question that has most
        lists = [entry["choices"] for key, entry in settings.items() if not key.startswith("_") and "choices" in entry]
        bools = sum(isinstance(entry, dict) and entry.get("type") == "bool" for entry in settings.values())
        while 2**bools * math.prod(map(len, lists)) > size and max(map(len, lists)) > 1:
            longest = max(lists, key=len)
            longest.pop([*longest][-1])
    elif (answers := round(size / legal)) > 1:  # ask one more question, which changes nothing but a comment
        values = [f"e{number}" for number in range(answers)]
        choices = {f"{value} (one of {answers})": {"value": value} for value in values}
        settings[EXTRA] = {"type": "str", "help": "Changes a comment", "choices": choices, "default": values[0]}
        program = clone / COMMENTED
        program.write_text(f"# {EXTRA}: {{{{ {EXTRA} }}}}\n{program.read_text()}")
    (clone / "copier.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def candidates(questions: list[Question]) -> int:
    """Return how many combinations Copier is asked about."""
    return math.prod(len(question.choices) for question in questions if question.choices)
