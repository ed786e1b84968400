"""The tests that a project brings pass after honest edits of its owner: many at once here, each alone at night."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.projects.ports import TOGETHER, failures


@pytest.mark.parametrize("edits", TOGETHER, ids=lambda edits: edits[0].__name__)
def test_a_project_passes_its_own_tests_after_honest_edits(
    edits: tuple[Callable[[Path], None], ...], own_project: Render
) -> None:
    project = own_project()
    for edit in edits:
        edit(project)
    said = failures(project, "tests/test_exact.py", "tests/test_export.py", "tests/test_loading.py")
    assert not said, said
