"""Verdicts that reports are made of, with texts that could do harm."""

import itertools
from collections.abc import Callable

from generator.answers.combinations import Combination, shaping_questions
from generator.answers.questions import Choice, Question
from generator.check.results import STAGES, Failure, Outcome, Verdict

HOSTILE = (
    "</script><script>window.harmed = 1</script>\n<img src=x onerror='window.harmed = 1'> {{ 7 * 7 }} [bold]&amp;\n"
    "\x1b[31mred\x1b[0m \x1b]0;title\x07nul:\0 bell:\a half:\ud800 ]]> <!-- -->"
)


CLEANED = "red nul: bell: half: ]]> <!-- -->"
NOTE = "apex is not installed"


def make_question(key: str, size: int) -> Question:
    """A question with so many choices."""
    return Question(key, f"Which {key}", f"{key}0", tuple(Choice(f"{key}{i}", f"{i}", False) for i in range(size)))


def make_verdict(questions: list[Question], legal: Callable[[Combination], bool] = lambda _: True) -> Verdict:
    """A verdict in which every stage ran on every legal combination, and nothing failed; every third was cached."""
    rows = itertools.product(*([(question.key, choice.value) for choice in question.choices] for question in questions))
    outcomes = [
        Outcome(combination, seconds={stage: 0.25 * n for n, stage in enumerate(STAGES)}, cached=i % 3 == 0)
        for i, combination in enumerate(filter(legal, map(Combination, rows)))
    ]
    return Verdict(
        outcomes, questions, stages={stage: 75.0 for stage in STAGES}, wall=4000.0, versions={"torch": "2.9"}
    )


def failed_verdict() -> Verdict:
    """A verdict on all questions of the template: three failures in two combinations, and a note in some."""
    made = make_verdict(shaping_questions(), lambda one: one["backend"] != "mpi" or one["launcher"] == "mpirun")
    first, second = made.outcomes[17], made.outcomes[99]
    first.failures += [Failure("train", HOSTILE, "/tmp/left/<b>here"), Failure("train", "and another")]
    second.failures += [
        Failure("types", "\ntrain.py:12: error: no\n"),
        Failure("train", "Traceback (most\n  x\nKeyError: 1"),
    ]
    second.weights = "0123abcd" * 8
    for outcome in made.outcomes:
        outcome.notes += [NOTE] if outcome.combination["amp"] == "apex" else []
    return made
