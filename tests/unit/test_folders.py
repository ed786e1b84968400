"""A test that outgrows its folder fails, and says what it did."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.folders import LIMITS, TESTS, Outgrown, folder_of

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


def test_every_folder_of_tests_is_known() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/__init__.py")}
    assert folders == {*LIMITS, "nightly"}
    assert folder_of(TESTS / "core" / "exact" / "test_resume.py") == "core"
    assert folder_of(Path("/elsewhere/test_it.py")) == ""
