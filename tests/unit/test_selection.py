"""Which combinations an option chooses, on small spaces made by hand."""

import itertools
from typing import Any

import pytest

from generator.answers.combinations import Combination, select
from generator.answers.questions import Choice, Question

# A car has wheels; only a boat has a mast.
VALUES: dict[str, list[Any]] = {"kind": ["car", "boat"], "colour": ["red", "blue", "green"], "mast": [False, True]}
CHOICES = {key: tuple(Choice(value, str(value), False) for value in values) for key, values in VALUES.items()}
QUESTIONS = [Question(key, "", choices[0].value, choices) for key, choices in CHOICES.items()]
ROWS = [row for row in itertools.product(*VALUES.values()) if row[0] == "boat" or not row[2]]
LEGAL = [Combination.of(dict(zip(VALUES, row, strict=True))) for row in ROWS]
CHOSEN = [
    ([], [each.name for each in LEGAL]),
    (["kind=car", "colour=blue"], ["car-blue-false"]),
    (["colour=blue", "kind=boat", "colour=red", "mast=false"], ["boat-red-false", "boat-blue-false"]),
    (["colour=red,blue", "mast=true"], ["boat-red-true", "boat-blue-true"]),
    (["boat-red-true"], ["boat-red-true"]),
    (["boat-red-true", "car-red-false"], ["car-red-false", "boat-red-true"]),
    (["boat-red-true", "kind=car", "colour=red"], ["car-red-false", "boat-red-true"]),
    (["car-red-false", "kind=car", "colour=red"], ["car-red-false"]),
]


@pytest.mark.parametrize(("wanted", "chosen"), CHOSEN, ids=" ".join)
def test_filters_and_names_choose(wanted: list[str], chosen: list[str]) -> None:
    assert [each.name for each in select(LEGAL, wanted, QUESTIONS)] == chosen
