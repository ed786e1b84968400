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
    monkeypatch.setitem(LIMITS, "cold", Limit(0.0))  # any time is too long, on any machine
    start_and_wait(int)  # the start of the server is not measured
    item = SimpleNamespace(path=TESTS / "cold" / "test_it.py", user_properties=[])
    call = Guard().pytest_runtest_call(cast(pytest.Item, item))
    next(call)
    start_and_wait(compute)
    with pytest.raises(StopIteration):
        next(call)
    [(_, words)] = item.user_properties
    assert float(words.split()[2]) >= 1
