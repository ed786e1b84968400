"""How fast this machine is, and how busy: limits in seconds are multiples of a measured unit, not constants."""

import time

UNIT = 300_000  # squares that are summed up
REFERENCE = 0.02  # seconds that one unit takes on an idle core of the machine on which the limits were chosen


def unit() -> float:
    """Return how long a fixed piece of work takes now (seconds)."""
    started = time.perf_counter()
    sum(number * number for number in range(UNIT))
    return time.perf_counter() - started


def seconds(number: float) -> float:
    """Return the time in which this machine does what takes a number of seconds on the idle reference, or more."""
    return number * max(1.0, unit() / REFERENCE)
