"""docs/launchers.md has every launcher of copier.yml, in both of its tables, and names tests that are there."""

import re

from generator.answers.questions import TEMPLATE, read_questions

PAGE = (TEMPLATE / "docs" / "launchers.md").read_text()


def rows() -> list[list[list[str]]]:
    """The cells of each table, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in table.splitlines()[2:]] for table in tables]


def test_each_launcher_has_its_rows() -> None:
    [launchers] = [question.choices for question in read_questions(TEMPLATE) if question.key == "launcher"]
    names = [f"`{choice.value}`" for choice in launchers]
    assert [[row[0] for row in table] for table in rows()] == [names, names]


def test_the_tests_that_a_row_names_are_there() -> None:
    _, proofs = rows()
    for launcher, _, command, *_ in proofs:
        [paths] = re.findall(r"^`scripts/test\.sh (.*)`$", command)
        assert all((TEMPLATE / path).is_file() for path in paths.split()), launcher
