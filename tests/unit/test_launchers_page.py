"""docs/launchers.md has every launcher of copier.yml, in both of its tables, and names tests that are there."""

import re

from generator.answers.questions import TEMPLATE, read_questions


def test_each_launcher_has_its_rows_and_tests_that_are_there() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (TEMPLATE / "docs" / "launchers.md").read_text(), re.MULTILINE)
    rows = [[line.strip("| ").split(" | ") for line in table.splitlines()[2:]] for table in tables]
    [launchers] = [question.choices for question in read_questions(TEMPLATE) if question.key == "launcher"]
    names = [f"`{choice.value}`" for choice in launchers]
    assert [[row[0] for row in table] for table in rows] == [names, names]
    for launcher, _, command, *_ in rows[1]:
        [paths] = re.findall(r"^`scripts/test\.sh (.*)`$", command)
        assert all((TEMPLATE / path).is_file() for path in paths.split()), launcher
