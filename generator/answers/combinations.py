"""Combinations of answers: their names, which of them to look at, and words that describe some of them."""

import hashlib
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from generator.answers.questions import TEMPLATE, Question, read_questions

EXAMPLES = 3  # of combinations that no filter describes
T = TypeVar("T", bound=Hashable)


class SelectionError(Exception):
    """The selection makes no sense. The message is one line that says why, and what would."""


@dataclass(frozen=True)
class Combination:
    """One answer to every question that has choices, in the order of copier.yml."""

    answers: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, answers: Mapping[str, Any]) -> "Combination":
        return cls(tuple(answers.items()))

    @property
    def name(self) -> str:
        """The values of all answers, such as digits-torchrun-auto-torch-ddp-false-console."""
        return "-".join(text(value) for _, value in self.answers)

    @property
    def as_filters(self) -> str:
        """The answers as the command line takes them, such as launcher=torchrun backend=auto."""
        return " ".join(f"{key}={text(value)}" for key, value in self.answers)

    def answer(self, key: str) -> str:
        """One answer as text; "" if the template does not ask."""
        return str(dict(self.answers).get(key, ""))

    def __getitem__(self, key: str) -> Any:
        return dict(self.answers)[key]


def text(value: Any) -> str:
    """Return an answer as it is written on a command line: false, not False."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shaping_questions(template: Path = TEMPLATE) -> list[Question]:
    """Return the questions with choices; the others (names and texts) keep their defaults."""
    return [question for question in read_questions(template) if question.choices]


def read_filters(wanted: Sequence[str], questions: Sequence[Question]) -> dict[str, set[str]]:
    """Return the choices that words such as key=one,other allow, by question."""
    filters: dict[str, set[str]] = {}
    for key, _, values in (word.partition("=") for word in wanted if "=" in word):
        filters.setdefault(key, set()).update(values.split(","))
    for key, choices in filters.items():
        refuse_unknown(key, questions)
        known = next([text(choice.value) for choice in each.choices] for each in questions if each.key == key)
        if unknown := sorted(choices - set(known)):
            raise SelectionError(f"{key}={unknown[0]} is no choice: {key} may be {', '.join(known)}")
    return filters


def select(
    combinations: Sequence[Combination], wanted: Sequence[str], questions: Sequence[Question]
) -> list[Combination]:
    """Return the combinations that any of the names, or all of the filters (key=value, key=one,other), choose."""
    names = {word for word in wanted if "=" not in word}
    filters = read_filters(wanted, questions)
    if unknown := sorted(names - {combination.name for combination in combinations}):
        example = combinations[0].name
        raise SelectionError(f"{unknown[0]} is neither KEY=VALUE nor the name of a combination, such as {example}")
    chosen = [each for each in combinations if each.name in names or ((filters or not names) and fits(each, filters))]
    if not chosen:
        raise SelectionError(f"no legal combination has {' '.join(wanted)}")
    return chosen


def refuse_unknown(key: str, questions: Sequence[Question]) -> None:
    known = [question.key for question in questions]
    if key not in known:
        raise SelectionError(f"{key} is no question with choices: those are {', '.join(known)}")


def fits(combination: Combination, filters: Mapping[str, AbstractSet[str]]) -> bool:
    return all(text(combination[key]) in values for key, values in filters.items())


def greedy_cover(having: Mapping[T, AbstractSet[object]], wanted: AbstractSet[object]) -> list[T]:
    """Choose again and again what has most of the rest, the first of equals; what nothing has stays uncovered."""
    bits = {item: 1 << number for number, item in enumerate(wanted)}  # numbers as sets: five times faster
    masks = {each: sum(bits[item] for item in items & bits.keys()) for each, items in having.items()}
    missing, chosen = sum(bits.values()), []
    while missing and masks:
        best = max(masks, key=lambda each: (masks[each] & missing).bit_count())
        if not masks[best] & missing:
            break
        missing &= ~masks[best]
        chosen.append(best)
    return chosen


def covering(combinations: Sequence[Combination], strength: int) -> list[Combination]:
    """Choose few combinations in which every pair of answers (strength 2; 3: triple) that is legal at all occurs."""
    size = len(combinations[0].answers)
    if not 1 <= strength <= size:
        raise SelectionError(f"--cover {strength} is impossible: choose 1 to {size}, the number of questions")
    having = {combination: {*itertools.combinations(combination.answers, strength)} for combination in combinations}
    chosen = {*greedy_cover(having, set().union(*having.values()))}
    return [combination for combination in combinations if combination in chosen]


def rotate(combinations: Sequence[Combination], key: str, questions: Sequence[Question]) -> list[Combination]:
    """Choose one of all that differ in this answer alone; its choices take turns, and each meets every other answer."""
    refuse_unknown(key, questions)
    place = {(each.key, choice.value): number for each in questions for number, choice in enumerate(each.choices)}
    alike: dict[tuple[tuple[str, Any], ...], list[Combination]] = {}
    for combination in combinations:
        others = tuple(answer for answer in combination.answers if answer[0] != key)
        alike.setdefault(others, []).append(combination)
    turns = {others: sum(place[answer] for answer in others) for others in alike}
    chosen = {members[turns[others] % len(members)] for others, members in alike.items()}
    return [combination for combination in combinations if combination in chosen]


def shard(combinations: Sequence[Combination], part: int, parts: int) -> list[Combination]:
    """Return part i of n, from 1, as assign() divides them. Raises SelectionError if there is no such part."""
    if not 1 <= part <= parts:
        raise SelectionError(f"--shard {part}/{parts} does not exist: the first is 1/{parts}, the last {parts}/{parts}")
    assigned = assign(combinations, parts)
    return [combination for combination in combinations if assigned[combination] == part]


def assign(combinations: Sequence[Combination], parts: int) -> dict[Combination, int]:
    """Give each combination to the part that a hash of its name likes best and that has room (rendezvous hashing)."""
    room = dict.fromkeys(range(1, parts + 1), math.ceil(len(combinations) / parts))
    assigned = {}
    for combination in sorted(combinations, key=lambda combination: digest(combination.name)):
        name = combination.name
        liked = max((number for number in room if room[number]), key=lambda number: digest(name, number))
        room[liked] -= 1
        assigned[combination] = liked
    return assigned


def digest(*parts: object) -> bytes:
    """Return a hash that is the same on every machine."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).digest()


def describe(chosen: Sequence[Combination], among: Sequence[Combination], questions: Sequence[Question]) -> str:
    """Return the filter that tells the chosen combinations from the others, or examples; "" if all are chosen."""
    members = set(chosen)
    others = [combination for combination in among if combination not in members]
    for prefix, some in (("", chosen), ("all but ", others)):
        if (found := smallest_filter(some, among, questions)) is not None:
            return prefix + found
    more = ", ..." if len(chosen) > EXAMPLES else ""
    return f"such as {', '.join(combination.name for combination in chosen[:EXAMPLES])}{more}"


def smallest_filter(
    chosen: Sequence[Combination], among: Sequence[Combination], questions: Sequence[Question]
) -> str | None:
    """Return the filter of fewest questions, then of fewest answers, that only the chosen pass, if there is one."""
    occurring = {question.key: {text(combination[question.key]) for combination in chosen} for question in questions}
    subsets = [some for size in range(len(questions) + 1) for some in itertools.combinations(questions, size)]
    for some in sorted(subsets, key=lambda some: (len(some), sum(len(occurring[each.key]) for each in some))):
        allowed = {question.key: occurring[question.key] for question in some}
        # All of the chosen pass, as the answers are theirs: that no other does is left to see.
        if sum(fits(combination, allowed) for combination in among) == len(chosen):
            return filter_of(chosen, some)
    return None


def filter_of(combinations: Sequence[Combination], questions: Sequence[Question]) -> str:
    """Return all answers to these questions that occur, as a filter, such as launcher=slurm,mpirun amp=apex."""
    occurring = {each.key: {text(combination[each.key]) for combination in combinations} for each in questions}
    choices = {each.key: [text(choice.value) for choice in each.choices] for each in questions}
    answers = {key: [choice for choice in choices[key] if choice in occurring[key]] for key in choices}
    return " ".join(f"{key}={','.join(its)}" for key, its in answers.items())
