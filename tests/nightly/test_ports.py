"""The tests of a project pass after each honest edit of its owner, and after each recipe of RECIPES.md."""

from pathlib import Path

import pytest

from tests.conftest import Render
from tests.core.tasks.test_recipes import changed_project, each_recipe
from tests.support.projects.ports import PORTS, failures


@pytest.mark.parametrize("port", PORTS)
def test_a_project_passes_its_own_tests_after_an_honest_edit(port: str, own_project: Render) -> None:
    project = own_project()
    PORTS[port](project)
    assert not (said := failures(project)), said


@each_recipe
def test_a_project_passes_its_own_tests_after_a_recipe(task: str, title: str, project: Render, tmp_path: Path) -> None:
    assert not (said := failures(changed_project(title, project(task=task), tmp_path / "project"))), said
