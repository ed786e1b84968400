"""What all benchmarks share: options, rounds, timed commands, the machine, and one format of results.

A file of results has the machine, the date and the command of the last run, and its measurements: one record a line.
"""

import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import psutil

from generator.answers.questions import TEMPLATE
from generator.render.project import render
from generator.render.snapshot import take_snapshot

RESULTS = TEMPLATE / "benchmarks" / "results"
MEMORY = 2**27  # bytes: what Linux keeps for itself differs a little from boot to boot

Record = dict[str, Any]


class CommandError(Exception):
    """A measured command fails. The message is what the command printed."""


@dataclass
class Benchmark:
    """The options of all benchmarks. Each benchmark adds its own, and measures."""

    rounds: int = 5
    """How often each contender runs."""
    out: Path | None = None
    """Where the results go (default: benchmarks/results/NAME.json)."""

    key: ClassVar[tuple[str, ...]] = ()  # new records replace the old ones that have the same values of these fields

    def machine(self) -> Record | None:
        """Return what decides the numbers beside the code. Results of another machine are dropped."""
        return machine()

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield records, to be stored at once: an interruption loses no more than the rest."""
        raise NotImplementedError


def run_benchmark(benchmark: Benchmark, name: str, folder: Path, command: str) -> Path:
    """Measure, and return the file with the results. Raises CommandError."""
    file, about = benchmark.out or RESULTS / f"{name}.json", benchmark.machine()
    for records in benchmark.measure(folder):
        store(file, records, benchmark.key, about, command)
    return file


def machine() -> Record:
    """Return the processor, the memory and the versions that decide the numbers beside the code."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(psutil.virtual_memory().total / MEMORY) * MEMORY,
        "cpu": found[1].strip() if found else "unknown",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def read(file: Path) -> Record:
    """Return the results in a file; nothing if there is none."""
    return json.loads(file.read_text()) if file.exists() else {}


def store(file: Path, records: Iterable[Record], key: Sequence[str], about: Record | None, command: str) -> None:
    """Write records in place of the old ones with the same key. Without a key, and on another machine, all go."""
    new, found = [*records], read(file)
    old = found["measurements"] if key and found and found["machine"] == about else []
    replaced = [tuple(map(record.get, key)) for record in new]
    kept = [record for record in old if tuple(map(record.get, key)) not in replaced]
    place = next((i for i, record in enumerate(old) if record not in kept), len(old))
    write(file, [*kept[:place], *new, *kept[place:]], about, command)


def write(file: Path, records: Iterable[Record], about: Record | None, command: str, day: str | None = "") -> None:
    """Write results: the head, then one record a line. The file is complete at any time."""
    head = {"machine": about, "date": date.today().isoformat() if day == "" else day, "command": command}
    lines = [f' "{name}": {json.dumps(value)},\n' for name, value in head.items()]
    measured = ",\n".join(f"  {json.dumps(record, ensure_ascii=False)}" for record in records)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".tmp").write_text("{\n" + "".join(lines) + f' "measurements": [\n{measured}\n ]\n}}\n')
    file.with_suffix(".tmp").replace(file)


def in_turn(
    runs: Mapping[str, Callable[[], Record]], rounds: int, warm_up: int = 0, *, tell: bool = True
) -> Iterator[dict[str, Record]]:
    """Run each contender in every round, in an order that rotates.

    Yields after each round, for each contender, the list of each number; rounds of the warm-up do not count.
    """
    found: dict[str, Record] = {name: {} for name in runs}
    for number in range(-warm_up, rounds):
        first = (number + warm_up) % len(runs)
        for name in (*[*runs][first:], *[*runs][:first]):
            if tell:
                say(name)
            numbers = runs[name]()
            for what, value in numbers.items() if number >= 0 else ():
                found[name].setdefault(what, []).append(value)
        if number >= 0:
            yield found


def ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of each round: the machine may be slower in some."""
    return [mine / his for mine, his in zip(own, other, strict=True)]


def spread(values: Iterable[float]) -> Record:
    """Return the median of some numbers, the smallest and the largest."""
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), 4), "low": round(ordered[0], 4), "high": round(ordered[-1], 4)}


def say(what: str) -> None:
    """Tell what is being measured."""
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def new_project(place: Path, **answers: str) -> Path:
    """Render the working tree's template, and return the project's folder."""
    with tempfile.TemporaryDirectory() as folder:
        render(place, answers, template=take_snapshot(Path(folder) / "snapshot"))
    return place


def imported(name: str) -> Any:
    """Return a module of a project, of which mypy knows nothing."""
    return importlib.import_module(name)


def train_epoch(train: Any, run: Any) -> None:
    """Take the steps of an epoch as main() of a project's train.py does, without evaluating and saving."""
    for micro_batches in run.reporter.progress_bar(run.training):
        train.train_step(run, micro_batches)
        if run.progress.is_reduction_due():
            train.reduce_and_log(run)
        if run.progress.has_finished_epoch():
            break
    run.progress.start_next_epoch()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that a function takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str] = os.environ, code: int = 0) -> str:
    """Run a command, and return what it prints. Raises CommandError if it ends with another exit code."""
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != code:
        raise CommandError(done.stdout)
    return done.stdout


def python_with(pinned: Path) -> Path:
    """Return the Python of a virtual environment with these packages. Raises CommandError if pip fails.

    The environment is created once, in .cache.
    """
    digest = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = TEMPLATE / ".cache" / pinned.stem / digest
    if not (place / "complete").exists():
        venv.create(place, clear=True, with_pip=True)
        try:
            run([place / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", pinned], TEMPLATE)
        except CommandError as error:
            shutil.rmtree(place)
            reason = [line for line in str(error).splitlines() if line.startswith("ERROR")] or ["it says nothing"]
            raise CommandError(f"pip cannot install what {pinned} names (is PyPI in reach?): {reason[-1]}") from None
        (place / "complete").touch()
    return place / "bin" / "python"
