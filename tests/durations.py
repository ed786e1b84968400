"""Where the time of the tests goes, by file and by cause: --costs looks at all processes that tests start."""

import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.runner import RESULTS as FOLDER
from benchmarks.runner import Record, machine, read, write
from tools.docs.tests import folder_table

from .folders import LIMITS, TESTS, files_in

RESULTS = FOLDER / "tests.json"
EVERY = 0.2  # seconds between two looks at the processes
IDLE = 0.1  # of a core: less is waiting
COMMAND = "scripts/test.sh --durations"
TORCH = "libtorch_python"
# What every rank imports before its first step.
COLD_START = "import torch, torch._dynamo, torch.distributed.nn.functional"


@dataclass
class Costs:
    """What the tests of a file have cost (seconds, but for numbers)."""

    tests: int = 0
    cpu: float = 0.0
    mypy: float = 0.0  # of the CPU time
    waiting: float = 0.0  # no process of the test computed
    cold_starts: int = 0  # processes that imported torch themselves


@dataclass
class Sampler:
    """Looks at this process and all that it has started, again and again."""

    costs: dict[str, Costs] = field(default_factory=lambda: defaultdict(Costs))  # by file, relative to tests/
    current: str = ""
    used: dict[int, float] = field(default_factory=dict)  # CPU seconds of each process at the last look
    known: set[int] = field(default_factory=set)  # processes whose import of torch is counted

    def watch(self) -> None:
        """Look until the process ends."""
        tick = threading.Event()
        while not tick.wait(EVERY):
            if self.current:
                self.look()

    def look(self) -> None:
        """Add what was computed since the last look to the costs of the current file."""
        costs, computed = self.costs[self.current], 0.0
        me = psutil.Process()
        now: dict[int, float] = {}
        for process in [me, *me.children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                times = process.cpu_times()
                now[process.pid] = times.user + times.system
                spent = now[process.pid] - self.used.get(process.pid, now[process.pid] if process == me else 0.0)
                computed += spent
                costs.mypy += spent if any("mypy" in word for word in process.cmdline()[:4]) else 0.0
                costs.cold_starts += process != me and self.has_imported_torch(process)
        self.used = now
        costs.cpu += computed
        costs.waiting += EVERY if computed < IDLE * EVERY else 0.0

    def has_imported_torch(self, process: psutil.Process) -> bool:
        """Whether a process is seen with torch for the first time, and was not forked from one that has it."""
        if process.pid in self.known or TORCH not in Path(f"/proc/{process.pid}/maps").read_text():
            return False
        self.known.add(process.pid)
        parent = process.parent()
        return parent is None or parent.cmdline() != process.cmdline()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test, with the fixtures that it is the first to need."""
        self.current = str(item.path.relative_to(TESTS))
        self.costs[self.current].tests += 1
        return (yield)

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that collects the costs, or write them down where this is the only one."""
        told = {name: asdict(costs) for name, costs in self.costs.items()}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = told
        else:
            Collector.of(session.config).take(told)


class Collector:
    """Writes down what all workers have measured, and shows it by folder."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, float]] = {}
        self.failed: set[str] = set()  # files with a test that failed: what they cost says nothing

    @staticmethod
    def of(config: pytest.Config) -> "Collector":
        """Return the collector of a session."""
        collector = config.pluginmanager.get_plugin("collector-of-costs")
        assert isinstance(collector, Collector)
        return collector

    def take(self, told: Mapping[str, Mapping[str, float]]) -> None:
        """Add what one process has measured."""
        for name, costs in told.items():
            before = self.files.get(name, {})
            self.files[name] = {key: round(before.get(key, 0) + value, 1) for key, value in costs.items()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which file has a test that failed, or whose fixtures did."""
        if report.failed:
            self.failed.add(report.nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of pytest-xdist has measured."""
        self.take(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the file, but for a slice, and show the table. Only a run of all default tests changes its date."""
        record = read(RESULTS)
        passed = {name: costs for name, costs in self.files.items() if name not in self.failed}
        files = {costs["file"]: costs for costs in record.get("measurements", ())} | with_names(passed)
        kept = [files[name] for name in sorted(files) if (TESTS / name).exists()]
        day, about = record.get("date"), record.get("machine")
        if day is None or passed.keys() >= set(files_in(*LIMITS)):
            day, about = "", machine() | {"cold_start": seconds_of_cold_start()}
        if not terminalreporter.config.getoption("--slice"):  # other slices are cut by what the file says
            write(RESULTS, kept, about, COMMAND, day)
        terminalreporter.section("where the time went")
        terminalreporter.write(folder_table({"machine": about, "measurements": [*with_names(self.files).values()]}))


def with_names(files: Mapping[str, Mapping[str, float]]) -> dict[str, Record]:
    """Return the record of each file."""
    return {name: {"file": name, **costs} for name, costs in files.items()}


def seconds_of_cold_start() -> float:
    """Return the CPU time that one process takes to import torch as a rank does."""
    before = os.times()
    subprocess.run([sys.executable, "-c", COLD_START], check=True)
    after = os.times()
    return round(sum(after[2:4]) - sum(before[2:4]), 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take whether to measure."""
    parser.addoption("--costs", action="store_true", help=f"measure where the time goes, and write {RESULTS.name}")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in every process that runs tests; collect in the one that started them."""
    if not config.getoption("--costs"):
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(), "collector-of-costs")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        sampler = Sampler()
        config.pluginmanager.register(sampler, "sampler-of-costs")
        threading.Thread(target=sampler.watch, daemon=True).start()
