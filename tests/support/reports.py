"""Verdicts that reports are made of, with texts that could do harm."""

import itertools

from generator.answers.combinations import Combination, shaping_questions
from generator.check.results import STAGES, Failure, Outcome, Verdict

HOSTILE = (
    "</script><script>window.harmed = 1</script>\n<img src=x onerror='window.harmed = 1'> {{ 7 * 7 }} [bold]&amp;\n"
    "\x1b[31mred\x1b[0m \x1b]0;title\x07nul:\0 bell:\a half:\ud800 ]]> <!-- -->"
)


CLEANED = "red nul: bell: half: ]]> <!-- -->"
NOTE = "apex is not installed"


def failed_verdict() -> Verdict:
    """A verdict on all questions of the template, on which every stage ran; every third combination was cached.

    There are three failures in two combinations, and a note in some.
    """
    rows = itertools.product(*([(each.key, choice.value) for choice in each.choices] for each in shaping_questions()))
    legal = (Combination(row) for row in rows if ("backend", "mpi") not in row or ("launcher", "mpirun") in row)
    outcomes = [
        Outcome(combination, seconds={stage: 0.25 * n for n, stage in enumerate(STAGES)}, cached=i % 3 == 0)
        for i, combination in enumerate(legal)
    ]
    made = Verdict(outcomes, stages={stage: 75.0 for stage in STAGES}, wall=4000.0, versions={"torch": "2.9"})
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
