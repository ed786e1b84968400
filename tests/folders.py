"""What a test may cost by the folder that it is in: one that outgrows its folder fails, and says where it belongs."""

import math
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from .pace import seconds

TESTS = Path(__file__).parent
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}  # audit events


@dataclass(frozen=True)
class Limit:
    """What a test of a folder may cost."""

    cpu: float = math.inf  # seconds of this process and those it has waited for, without fixtures that others share
    processes: bool = True  # whether it may start any


LIMITS = {"unit": Limit(2, processes=False), "core": Limit(30), "cold": Limit(60)}


class Outgrown(Exception):
    """A test did what its folder is not for."""


def folder_of(path: Path) -> str:
    """Return the folder of tests/ that a file is in."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def cpu_seconds() -> float:
    """Return the time that this process and those that it has waited for have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Guard:
    """Refuses processes while a test runs that may not start any."""

    def __init__(self) -> None:
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
        limit = LIMITS.get(folder_of(item.path), Limit())
        if limit.processes:
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
        """Fail if a test computes for longer than its folder allows."""
        before = cpu_seconds()
        result = yield
        used, folder = cpu_seconds() - before, folder_of(item.path)
        limit = LIMITS.get(folder, Limit()).cpu
        if used > limit and used > (allowed := seconds(limit)):
            pytest.fail(f"computes for {used:.1f} s, and tests/{folder}/ allows {allowed:.1f} s", pytrace=False)
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Watch every test."""
    with suppress(ValueError):  # where it is registered already
        config.pluginmanager.register(Guard(), "guard-of-folders")
