"""Comparing fairly on a machine whose speed changes: each runs once in every round, and ratios are those of a round."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Record = dict[str, Any]


def play(names: Sequence[str], rounds: int, run: Callable[[str], Record]) -> Iterator[dict[str, list[Record]]]:
    """Run each in every round, in an order that rotates from round to round. Yields all records after each round."""
    played: dict[str, list[Record]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            played[name].append(run(name))
        yield played


def compare(played: dict[str, list[Record]], baseline: str, what: str) -> dict[str, Record]:
    """Return the spread of a number's ratio to that of the baseline in the same round, for each."""
    return {
        name: spread(own[what] / other[what] for own, other in zip(records, played[baseline], strict=True))
        for name, records in played.items()
    }


def spread(values: Iterable[float]) -> Record:
    """The median of some numbers, the smallest and the largest."""
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), 4), "low": round(ordered[0], 4), "high": round(ordered[-1], 4)}
