"""Says in few words which combinations some are: by a filter that the command line takes, where there is one."""

import itertools
from collections.abc import Sequence

from .combinations import Combination, text
from .questions import Question
from .selection import fits

EXAMPLES = 3
Filter = dict[str, list[str]]  # the answers that are allowed, by question; a question that is not there allows all


def describe(chosen: Sequence[Combination], among: Sequence[Combination], questions: Sequence[Question]) -> str:
    """Give the filter that tells the chosen combinations from the others, or examples; "" where all are chosen.

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
    """Give the filter of fewest questions, and then of fewest answers, that only the chosen combinations pass.

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
