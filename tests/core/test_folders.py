"""A test pays for what ranks compute that it does not wait for itself: the server that forks them does."""

import multiprocessing
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tests.folders import LIMITS, TESTS, Guard, Limit

FORKING = multiprocessing.get_context("forkserver")


def compute() -> None:
    """Use a core for a second."""
    while time.process_time() < 1:
        pass


def start_and_wait(target: Callable[[], object]) -> None:
    """Let the server fork a process, and wait until that has ended."""
    process = FORKING.Process(target=target)
    process.start()
    process.join()


def test_what_forked_processes_compute_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "cold", Limit(0.05))  # a slow machine has ten times as much
    start_and_wait(int)  # the start of the server is not measured
    call = Guard().pytest_runtest_call(cast(pytest.Item, SimpleNamespace(path=TESTS / "cold" / "test_it.py")))
    next(call)
    start_and_wait(compute)
    with pytest.raises(pytest.fail.Exception, match=r"^computes for 1\.\d s, and tests/cold/ allows "):
        next(call)
