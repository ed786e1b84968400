"""Which answers Copier has to be asked about together, for small templates made by hand."""

from pathlib import Path
from textwrap import dedent

import pytest

from generator.answers.dependence import groups_of_answers

QUESTIONS = """
kind:
  type: str
  help: A car, or a boat
  choices: {a car: {value: car}, a boat: {value: boat}}
  default: car
colour:
  type: str
  help: Its colour
  choices: {red: {value: red}, blue: {value: blue}}
  default: red
mast:
  type: bool
  help: Whether it has a mast
  default: false
"""
ALONE = [{"kind"}, {"colour"}, {"mast"}]
TOGETHER = [{"kind", "colour", "mast"}]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ALONE),
        (
            "name: {type: str, help: Its name, validator: '{% if mast and kind %}no{% endif %}'}",
            [{"kind", "mast"}, {"colour"}],
        ),
        # What a computed value reads is read by whoever reads the value.
        (
            """
            painted: {type: str, when: false, default: '{{ colour }}'}
            name: {type: str, help: Its name, default: '{{ painted }}', validator: '{{ kind }}'}
            """,
            [{"kind", "colour"}, {"mast"}],
        ),
        ("_exclude: ['{{ kind }}', '{{ colour }}']", ALONE),
        ("_exclude: ['{{ kind }}{{ colour }}']", [{"kind", "colour"}, {"mast"}]),
        ("name: {type: str, help: '', validator: '{% from \"x\" import f %}{{ f(mast) }}'}", ALONE),
        ("name: {type: str, help: '', validator: '{% from \"x\" import f with context %}{{ f(mast) }}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{% include \"x\" %}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{{ _copier_answers }}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{% not Jinja'}", TOGETHER),
    ],
)
def test_questions_that_one_text_reads_are_in_one_group(more: str, expected: list[set[str]], tmp_path: Path) -> None:
    (tmp_path / "copier.yml").write_text(QUESTIONS + dedent(more))
    assert [{*group} for group in groups_of_answers(tmp_path)] == expected
