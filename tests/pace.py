"""How fast this machine is, and how busy: limits in seconds are multiples of a measured unit, not constants."""

import time

SQUARES = 300_000
REFERENCE = 0.02  # seconds that a unit takes on an idle core of the machine on which the limits were chosen


def unit() -> float:
    """Return how long a fixed piece of work takes now (seconds)."""
    started = time.perf_counter()
    sum(number * number for number in range(SQUARES))
    return time.perf_counter() - started


def seconds(number: float) -> float:
    """Return the time in which this machine, as busy as it is, does what takes so many seconds on the reference."""
    return number * max(1.0, max(unit() for _ in range(3)) / REFERENCE)
