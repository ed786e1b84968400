"""A test that outgrows its folder fails, or is reported, with what it did."""

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from tests.folders import DEARER, LIMITS, TESTS, Guard, Limit, Outgrown, Reporter, files_in, folder_of, limit_of

STARTS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(["true"]),
    "a shell": lambda: os.system("true"),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "fork": os.fork,
    "multiprocessing": lambda: multiprocessing.get_context("spawn").Process(target=sys.exit).start(),
}


@pytest.mark.parametrize("way", STARTS)
def test_a_test_of_this_folder_can_start_no_process(way: str) -> None:
    with pytest.raises(Outgrown, match=r"test_folders.py.*starts a process .*: its place is tests/core/"):
        STARTS[way]()


def test_a_test_that_computes_for_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "cold", Limit(0.0))
    item = SimpleNamespace(path=TESTS / "cold" / "test_it.py", nodeid="it", user_properties=[])
    with pytest.raises(StopIteration):
        run_over_budget(Guard(), item)
    report = SimpleNamespace(when="call", nodeid="it", user_properties=item.user_properties)
    reporter, shown = Reporter(), Mock()
    reporter.pytest_runtest_logreport(cast(pytest.TestReport, report))
    reporter.pytest_terminal_summary(shown)
    [line] = [call.args[0] for call in shown.write_line.call_args_list]
    assert re.fullmatch(r"it computes for \d\.\d s, and tests/cold/ allows 0\.0 s here \(0 s on the reference .*", line)


def test_a_test_that_computes_for_too_long_fails_if_budgets_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "cold", Limit(0.0))
    item = SimpleNamespace(path=TESTS / "cold" / "test_it.py", nodeid="it", user_properties=[])
    with pytest.raises(pytest.fail.Exception, match=r"^computes for \d\.\d s, and tests/cold/ allows 0\.0 s here$"):
        run_over_budget(Guard(strict=True), item)


def run_over_budget(guard: Guard, item: SimpleNamespace) -> None:
    """Let a guard see a test that computes."""
    call = guard.pytest_runtest_call(cast(pytest.Item, item))
    next(call)
    sum(range(10**6))
    next(call)


def test_every_folder_of_tests_is_known() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/__init__.py")}
    assert folders == {*LIMITS, "nightly"}
    assert folder_of(TESTS / "core" / "exact" / "test_resume.py") == "core"
    assert folder_of(Path("/elsewhere/test_it.py")) == ""


def test_a_file_may_have_a_limit_of_its_own() -> None:
    assert DEARER.keys() <= {*files_in(*LIMITS)}
    for name, limit in DEARER.items():
        assert limit_of(TESTS / name) == limit
    assert limit_of(TESTS / "core" / "test_folders.py") == LIMITS["core"]
    assert limit_of(Path("/elsewhere/test_it.py")) == Limit()
