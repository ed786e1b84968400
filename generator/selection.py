"""Which combinations to look at: all, those that filters choose, a covering set, one of several shards."""

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence

from .combinations import Combination, by_name, text
from .covers import greedy_cover
from .questions import Question

Tuples = set[tuple[tuple[str, object], ...]]


class SelectionError(Exception):
    """The selection makes no sense. The message is one line that says why, and what would."""


def select(
    combinations: Sequence[Combination], wanted: Sequence[str], questions: Sequence[Question]
) -> list[Combination]:
    """Give the combinations that any of the names, or all of the filters (key=value, key=one,other), choose.

    Raises SelectionError where a question, a choice or a name does not exist, or where nothing is left.
    """
    names = [word for word in wanted if "=" not in word]
    filters: dict[str, set[str]] = {}
    for word in wanted:
        if "=" in word:
            key, _, values = word.partition("=")
            filters.setdefault(key, set()).update(values.split(","))
    known = {question.key: [text(choice.value) for choice in question.choices] for question in questions}
    for key, choices in filters.items():
        if key not in known:
            raise SelectionError(f"{key} is no question with choices: those are {', '.join(known)}")
        if unknown := sorted(choices - set(known[key])):
            raise SelectionError(f"{key}={unknown[0]} is no choice: {key} may be {', '.join(known[key])}")
    named = by_name(combinations)
    if unknown_names := [name for name in names if name not in named]:
        raise SelectionError(
            f"{unknown_names[0]} is neither KEY=VALUE nor the name of a combination, such as {combinations[0].name}"
        )
    chosen = [
        combination
        for combination in combinations
        if combination.name in names or (filters and fits(combination, filters)) or not wanted
    ]
    if not chosen:
        raise SelectionError(f"no legal combination has {' '.join(wanted)}")
    return chosen


def fits(combination: Combination, filters: dict[str, set[str]]) -> bool:
    """Whether every filter allows the combination's answer."""
    return all(text(combination[key]) in values for key, values in filters.items())


def tuples_of(combination: Combination, strength: int) -> Tuples:
    """All pairs of answers of a combination (strength 2), or triples (3), and so on."""
    return set(itertools.combinations(combination.answers, strength))


def tuples_within(combinations: Iterable[Combination], strength: int) -> Tuples:
    """All pairs, or triples, that occur in any of the combinations."""
    return set().union(*(tuples_of(combination, strength) for combination in combinations))


def covering(combinations: Sequence[Combination], strength: int) -> list[Combination]:
    """Choose few combinations in which every pair of answers (strength 2; 3: triple) that is legal at all occurs.

    Takes the combination that covers most of what is still missing, the first of equals: greedy, and always the same.
    Raises SelectionError where there are no tuples of this strength.
    """
    size = len(combinations[0].answers)
    if not 1 <= strength <= size:
        raise SelectionError(f"--cover {strength} is impossible: choose 1 to {size}, the number of questions")
    having = {combination: tuples_of(combination, strength) for combination in combinations}
    chosen = {*greedy_cover(having, tuples_within(combinations, strength))}
    return [combination for combination in combinations if combination in chosen]


def shard(combinations: Sequence[Combination], part: int, parts: int) -> list[Combination]:
    """Give part i of n, from 1. No part has more than its share, rounded up, and none lacks more than n - 1 of it.

    Each combination goes to the part that a hash of its name likes best and that has room (rendezvous hashing), so
    few combinations move to another part when a choice comes or goes. Raises SelectionError where no such part is.
    """
    if not 1 <= part <= parts:
        raise SelectionError(f"--shard {part}/{parts} does not exist: the first is 1/{parts}, the last {parts}/{parts}")
    assigned = assign(combinations, parts)
    return [combination for combination in combinations if assigned[combination] == part]


def assign(combinations: Sequence[Combination], parts: int) -> dict[Combination, int]:
    """Give the part of each combination, as shard() describes it."""
    room = dict.fromkeys(range(1, parts + 1), math.ceil(len(combinations) / parts))
    assigned = {}
    for combination in sorted(combinations, key=lambda combination: digest(combination.name)):
        liked = max((number for number in room if room[number]), key=lambda number: digest(combination.name, number))
        room[liked] -= 1
        assigned[combination] = liked
    return assigned


def digest(*parts: object) -> bytes:
    """A hash that is the same on every machine."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
