"""Chooses few things that together have all that is wanted."""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def greedy_cover(having: Mapping[T, AbstractSet[object]], wanted: AbstractSet[object]) -> list[T]:
    """Choose again and again what has most of the rest, the first of several that have as much.

    What nothing has stays uncovered.
    """
    missing, chosen = set(wanted), []
    left = dict(having)
    while left:
        best = max(left, key=lambda each: len(left[each] & missing))
        found = left.pop(best) & missing
        if not found:
            break
        missing -= found
        chosen.append(best)
    return chosen
