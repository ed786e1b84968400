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


def groups(folder: Path, more: str) -> list[set[str]]:
    """Return the groups of the questions above in a copier.yml that goes on with more entries."""
    (folder / "copier.yml").write_text(QUESTIONS + dedent(more))
    return [{*group} for group in groups_of_answers(folder)]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ALONE),
        ("name: {type: str, help: Its name, default: '{{ kind }}'}", ALONE),
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
        ("_message_after_copy: '{{ kind }}{{ colour }}'", ALONE),
        ("name: {type: str, help: '', validator: '{% from \"x\" import f %}{{ f(mast) }}'}", ALONE),
        ("name: {type: str, help: '', validator: '{% from \"x\" import f with context %}{{ f(mast) }}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{% include \"x\" %}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{{ _copier_answers }}'}", TOGETHER),
        ("name: {type: str, help: '', validator: '{% not Jinja'}", TOGETHER),
        (
            "_envops: {variable_start_string: '[[', variable_end_string: ']]'}\n_exclude: ['[[ kind ]][[ mast ]]']",
            [{"kind", "mast"}, {"colour"}],
        ),
    ],
)
def test_questions_that_one_text_reads_are_in_one_group(more: str, expected: list[set[str]], tmp_path: Path) -> None:
    assert groups(tmp_path, more) == expected


def test_a_choice_that_reads_another_answer_is_in_its_group(tmp_path: Path) -> None:
    refusing = "{value: blue, validator: \"{% if kind == 'car' %}no{% endif %}\"}"
    (tmp_path / "copier.yml").write_text(QUESTIONS.replace("{value: blue}", refusing))
    assert [{*group} for group in groups_of_answers(tmp_path)] == [{"kind", "colour"}, {"mast"}]
