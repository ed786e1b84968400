"""The tests of a project pass after each recipe of RECIPES.md: they know the interface of the task, not the digits."""

import sys
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.core.tasks.test_recipes import LONG, SHORT, changed_project
from tests.support.processes import output_of


@pytest.mark.parametrize("title", [*SHORT, *sorted(LONG)])
def test_the_projects_own_tests_pass_after_it(title: str, project: Render, tmp_path: Path) -> None:
    place = changed_project(title, project(), tmp_path / "project")
    output_of([sys.executable, "-m", "pytest", "-q"], place)
