"""A test that outgrows its folder fails, and says what it did."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.folders import DEARER, LIMITS, TESTS, Guard, Limit, Outgrown, files_in, folder_of, limit_of

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


def test_a_test_that_computes_for_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "cold", Limit(0.0))
    item = cast(pytest.Item, SimpleNamespace(path=TESTS / "cold" / "test_it.py", nodeid="it"))
    call = Guard().pytest_runtest_call(item)
    next(call)
    sum(range(10**6))
    with pytest.raises(pytest.fail.Exception, match=r"^computes for 0.\d s, and tests/cold/ allows 0.0 s$"):
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
