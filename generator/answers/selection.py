"""Which combinations to look at: all, those that filters choose, a covering set, one of several shards; and in
few words, which combinations some are.
"""

import hashlib
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from generator.answers.combinations import Combination, by_name, text
from generator.answers.questions import Question

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


Tuples = set[tuple[tuple[str, object], ...]]


class SelectionError(Exception):
    """The selection makes no sense. The message is one line that says why, and what would."""


def select(
    combinations: Sequence[Combination], wanted: Sequence[str], questions: Sequence[Question]
) -> list[Combination]:
    """Return the combinations that any of the names, or all of the filters (key=value, key=one,other), choose.

    Raises SelectionError if a question, a choice or a name does not exist, or if nothing is left.
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
    Raises SelectionError if there are no tuples of this strength.
    """
    size = len(combinations[0].answers)
    if not 1 <= strength <= size:
        raise SelectionError(f"--cover {strength} is impossible: choose 1 to {size}, the number of questions")
    having = {combination: tuples_of(combination, strength) for combination in combinations}
    chosen = {*greedy_cover(having, tuples_within(combinations, strength))}
    return [combination for combination in combinations if combination in chosen]


def shard(combinations: Sequence[Combination], part: int, parts: int) -> list[Combination]:
    """Return part i of n, from 1. No part has more than its share, rounded up, and none lacks more than n - 1 of it.

    Each combination goes to the part that a hash of its name likes best and that has room (rendezvous hashing), so
    few combinations move to another part when a choice comes or goes. Raises SelectionError if no such part is.
    """
    if not 1 <= part <= parts:
        raise SelectionError(f"--shard {part}/{parts} does not exist: the first is 1/{parts}, the last {parts}/{parts}")
    assigned = assign(combinations, parts)
    return [combination for combination in combinations if assigned[combination] == part]


def assign(combinations: Sequence[Combination], parts: int) -> dict[Combination, int]:
    """Return the part of each combination, as shard() describes it."""
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


EXAMPLES = 3
Filter = dict[str, list[str]]  # the answers that are allowed, by question; a question that is not there allows all


def describe(chosen: Sequence[Combination], among: Sequence[Combination], questions: Sequence[Question]) -> str:
    """Return the filter that tells the chosen combinations from the others, or examples; "" if all are chosen.

    The filter holds among these combinations, which need not be all that are legal.
    """
    smallest = smallest_filter(chosen, among, questions)
    if smallest is not None:
        return as_words(smallest)
    members = set(chosen)
    others = [combination for combination in among if combination not in members]
    left_out = smallest_filter(others, among, questions)
    if left_out is not None:
        return f"all but {as_words(left_out)}"
    more = ", ..." if len(chosen) > EXAMPLES else ""
    return f"such as {', '.join(combination.name for combination in chosen[:EXAMPLES])}{more}"


def smallest_filter(
    chosen: Sequence[Combination], among: Sequence[Combination], questions: Sequence[Question]
) -> Filter | None:
    """Return the filter of fewest questions, and then of fewest answers, that only the chosen combinations pass.

    None where there is no such filter: the chosen ones are no product of answers.
    """
    if not chosen:
        return None
    answers = {question.key: answers_of(question, chosen) for question in questions}
    for size in range(len(questions) + 1):
        sizes = itertools.combinations(answers, size)
        for keys in sorted(sizes, key=lambda keys: sum(len(answers[key]) for key in keys)):
            candidate = {key: answers[key] for key in keys}
            allowed = {key: set(values) for key, values in candidate.items()}
            # All of the chosen pass, as the answers are theirs: that no other does is left to see.
            if sum(fits(combination, allowed) for combination in among) == len(chosen):
                return candidate
    return None


def answers_of(question: Question, combinations: Sequence[Combination]) -> list[str]:
    """The answers to a question that occur, as they are written on a command line, in the order of the choices."""
    occurring = {text(combination[question.key]) for combination in combinations}
    return [text(choice.value) for choice in question.choices if text(choice.value) in occurring]


def as_words(filters: Filter) -> str:
    """Write a filter as the command line takes it, such as launcher=slurm,mpirun amp=apex."""
    return " ".join(f"{key}={','.join(values)}" for key, values in filters.items())
