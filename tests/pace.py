"""How fast this machine is, and how busy: limits in seconds are multiples of a measured unit, not constants."""

import time
from collections.abc import Callable
from typing import TypeVar

SQUARES = 300_000
SPARE = 5  # what only a hang outlasts is so many times what is expected
REFERENCE = 0.02  # seconds that a unit takes on an idle core of the machine on which the limits were chosen

Found = TypeVar("Found")


def unit(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a fixed piece of work takes now (seconds of this clock)."""
    started = clock()
    sum(number * number for number in range(SQUARES))
    return clock() - started


def seconds(number: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time in which this machine, as busy as it is, does what takes so many seconds on the reference."""
    return number * max(1.0, max(unit(clock) for _ in range(3)) / REFERENCE)


def until_hung(number: float) -> float:
    """Return the time limit (seconds) of what takes at most so many seconds on the reference: a hang alone meets it."""
    return SPARE * seconds(number)


def wait_until(
    condition: Callable[[], Found | None], limit: float = 60, told: Callable[[], object] = str, pause: float = 0.02
) -> Found:
    """Wait until something is there or holds, and return it. Fails, with what is told, some time after the limit."""
    started = time.monotonic()
    while not (found := condition()):
        # The pace is measured after the limit alone: until then, nothing is to come between two looks.
        late = time.monotonic() > started + limit and time.monotonic() > started + until_hung(limit)
        assert not late, f"after more than {limit} s, it has not come: {told()}"
        time.sleep(pause)
    return found
