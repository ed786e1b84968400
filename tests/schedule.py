"""Which nightly tests belong to a slice, and in which order files run: by the seconds that they took before."""

import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from benchmarks.runner import read
from tools.docs.tests import seconds

from .durations import RESULTS
from .folders import TESTS, files_in

SIZE_OF_SLICE = 900  # seconds of its tests, one after another: half of that on two cores
UNKNOWN = 30.0  # seconds of a file that was never measured


@dataclass(frozen=True)
class Slice:
    """One of the parts of the nightly tests."""

    number: int  # from 1
    slices: int

    def files(self, seconds: Mapping[str, float]) -> set[str]:
        """Return the files of this part: the longest first, each goes to the part that has least to do."""
        parts: list[list[str]] = [[] for _ in range(self.slices)]
        loads = [0.0] * self.slices
        for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
            least = loads.index(min(loads))
            parts[least].append(name)
            loads[least] += seconds[name]
        return set(parts[self.number - 1])

    @property
    def words(self) -> str:
        """What the tests are, and how to run the others."""
        return f"slice {self.number} of {self.slices} of the nightly tests (scripts/test.sh --slice I/{self.slices})"


def read_slice(text: str, seconds: Mapping[str, float]) -> Slice:
    """Understand --slice: I/N, or auto, where the commit chooses one of as many as are needed. Raises UsageError."""
    if text == "auto":
        slices = max(1, math.ceil(sum(seconds.values()) / SIZE_OF_SLICE))
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=True)
        return Slice(int(commit.stdout, 16) % slices + 1, slices)
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--slice {text} does not exist: give auto, or I/N such as 2/5")
    return Slice(int(part), int(parts))


def seconds_of(files: Iterable[str]) -> dict[str, float]:
    """Return what each file of tests cost when it was measured."""
    measured = {costs["file"]: costs for costs in read(RESULTS).get("measurements", ())}
    return {name: max(1.0, seconds(measured[name])) if name in measured else UNKNOWN for name in files}


def file_of(item: pytest.Item) -> str:
    """Return the path of a test's file, as the measurements name it."""
    return str(item.path.relative_to(TESTS)) if item.path.is_relative_to(TESTS) else str(item.path)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take which slice is to run."""
    parser.addoption("--slice", metavar="I/N", help="run one part of the tests, or with auto the one of this commit")


def pytest_report_header(config: pytest.Config) -> Sequence[str]:
    """Say which slice is run."""
    return [config.stash[CHOSEN].words] if CHOSEN in config.stash else []


CHOSEN = pytest.StashKey[Slice]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose the slice."""
    if text := config.getoption("--slice"):
        config.stash[CHOSEN] = read_slice(text, seconds_of(files_in("nightly")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the slice. Where files run side by side, those that take longest begin."""
    if CHOSEN in config.stash:
        wanted = config.stash[CHOSEN].files(seconds_of(files_in("nightly")))
        config.hook.pytest_deselected(items=[item for item in items if file_of(item) not in wanted])
        items[:] = [item for item in items if file_of(item) in wanted]
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        seconds = seconds_of({file_of(item) for item in items})
        items.sort(key=lambda item: (-seconds[file_of(item)], file_of(item)))
