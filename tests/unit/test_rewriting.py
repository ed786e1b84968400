"""Edits by syntax change one place, named by a pattern and perhaps a function, or say why they cannot."""

import re

import pytest

from tools.rewriting import Rewrite, RewriteError

CODE = '''"""A module: é, 日本 and 😀."""

from __future__ import annotations

import math  # nötig


class Shape:
    sides: int = 4

    def area(self, size: float) -> float:
        name = "größer"; size = scaled(
            size,
            by=2,
        )
        return math.sqrt(size)


def area_of(size: float) -> float:
    units = {"unit": "m²", "digits": 2}
    if size > 0 or units:
        size = scaled(size, by=3)
    print("done", size)
    return math.sqrt(size)
'''
CALL = "scaled(\n            size,\n            by=2,\n        )"


def with_another(old: str, new: str) -> str:
    """The code with another text in the place of one that it has once."""
    assert CODE.count(old) == 1
    return CODE.replace(old, new)


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (Rewrite("size > 0 or $OTHER", "$OTHER"), "size > 0 or units", "units"),
        (Rewrite("print($FIRST, $$$REST)", "print($$$REST, $FIRST)"), '("done", size)', '(size, "done")'),
        (Rewrite("import $NAME", "import $NAME as m"), "import math  #", "import math as m  #"),
        (Rewrite("sides: int = $N", "sides = $N", "Shape"), "sides: int = 4", "sides = 4"),
        (Rewrite("by=3", "by=4"), "by=3", "by=4"),
        (Rewrite("by=$X", "by=$X + 1", "area_of"), "by=3", "by=3 + 1"),
        (Rewrite('"digits": $X', '"places": $X'), '"digits": 2', '"places": 2'),
        (Rewrite("scaled($$$A)", "twice({})", "Shape.area"), CALL, f"twice({CALL})"),
        (Rewrite("print($$$A)", ""), 'print("done", size)', "pass"),
        (
            Rewrite("print($$$A)", "{}\nif size:\n    size = 0\n\nsize += 1"),
            'print("done", size)',
            'print("done", size)\n    if size:\n        size = 0\n\n    size += 1',
        ),
    ],
    ids=lambda value: value.pattern if isinstance(value, Rewrite) else "",
)
def test_what_a_pattern_finds_is_replaced_and_all_else_stays(edit: Rewrite, old: str, new: str) -> None:
    assert edit.applied(CODE) == with_another(old, new)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Rewrite("math.sqrt($X)", "$X"), "'math.sqrt($X)' is in the code 2 times, not once"),
        (Rewrite("math.sqrt($X)", "$X", "Shape"), "'math.sqrt($X)' is in Shape() of the code 0 times, not once"),
        (Rewrite("area.sqrt($X)", "$X"), "'area.sqrt($X)' is in the code 0 times, not once"),
    ],
)
def test_a_place_that_is_not_there_once_is_told(edit: Rewrite, said: str) -> None:
    with pytest.raises(RewriteError, match=f"^{re.escape(said)}$"):
        edit.applied(CODE)
