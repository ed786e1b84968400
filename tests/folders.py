"""What a test may cost by the folder that it is in.

A test that starts a process where none may be started fails. One that computes for too long is reported at the end of
the run, since that depends on the machine, too; with --strict-budgets it fails.
"""

import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import scaled

TESTS = Path(__file__).parent
OVER_BUDGET = "over budget"  # property of a test
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}  # audit events


@dataclass(frozen=True)
class Limit:
    """What a test of a folder may cost."""

    cpu: float = math.inf  # seconds of this process and all that it starts, without fixtures that others share
    processes: bool = True  # whether it may start any


LIMITS = {"unit": Limit(2, processes=False), "core": Limit(30), "cold": Limit(60)}
DEARER = {"core/faults/test_chaos.py": Limit(100)}  # no change lands before a nemesis has met it


class Outgrown(Exception):
    """A test did what its folder is not for."""


def folder_of(path: Path) -> str:
    """Return the folder of tests/ that a file is in."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def files_in(*folders: str) -> list[str]:
    """Return all files of tests in some folders of tests/, relative to it."""
    return sorted(str(file.relative_to(TESTS)) for folder in folders for file in (TESTS / folder).rglob("test_*.py"))


def limit_of(path: Path) -> Limit:
    """Return what a test of a file may cost."""
    own = DEARER.get(str(path.relative_to(TESTS))) if path.is_relative_to(TESTS) else None
    return own or LIMITS.get(folder_of(path), Limit())


def cpu_seconds() -> float:
    """Return the time that this process, those below it and those that any of them has waited for have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in used)
    for process in psutil.Process().children(recursive=True):  # ranks are waited for by the server that forks them
        with suppress(psutil.Error):  # it may end while it is looked at
            total += sum(process.cpu_times()[:4])
    return total


class Guard:
    """Refuses processes while a test runs that may not start any, and measures how long each test computes."""

    def __init__(self, *, strict: bool = False) -> None:
        """With strict, a test that computes for longer than its folder allows fails."""
        self.strict = strict
        self.refusing = ""  # the test
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise Outgrown if a process is about to start that should not."""
        if self.refusing and event in STARTS:
            raise Outgrown(f"{self.refusing} starts a process ({event}): its place is tests/core/, or another folder")

    def refuse(self) -> None:
        """Take the place of a start by multiprocessing, which has no audit event."""
        self.audit("subprocess.Popen", ())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Refuse processes, also for the fixtures of a test, if its folder is not for them."""
        if limit_of(item.path).processes:
            return (yield)
        self.refusing = item.nodeid
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BaseProcess, "start", self.refuse)
                return (yield)
        finally:
            self.refusing = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note, or fail, if a test computes for longer than its folder allows."""
        before, limit = cpu_seconds(), limit_of(item.path).cpu
        result = yield
        used = cpu_seconds() - before
        # In CPU time: that a machine is busy hardly lets a test compute for longer.
        if used > limit and used > (allowed := scaled(limit, time.thread_time)):
            words = f"computes for {used:.1f} s, and tests/{folder_of(item.path)}/ allows {allowed:.1f} s here"
            item.user_properties.append((OVER_BUDGET, f"{words} ({limit:.0f} s on the reference machine)"))
            if self.strict:
                pytest.fail(words, pytrace=False)
        return result


class Reporter:
    """Says at the end which tests have computed for longer than their folder allows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what was noted of a test, also by another process."""
        if report.when == "call":
            self.lines += [f"{report.nodeid} {words}" for name, words in report.user_properties if name == OVER_BUDGET]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the list, if there is one."""
        if self.lines:
            terminalreporter.section("over the budget of their folder (docs/testing.md)")
            for line in self.lines:
                terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take whether budgets are binding."""
    parser.addoption("--strict-budgets", action="store_true", help="fail tests that compute for longer than they may")


def pytest_configure(config: pytest.Config) -> None:
    """Watch every test, and report where no other process does."""
    with suppress(ValueError):  # where it is registered already
        config.pluginmanager.register(Guard(strict=config.getoption("--strict-budgets")), "guard-of-folders")
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Reporter(), "reporter-of-budgets")
