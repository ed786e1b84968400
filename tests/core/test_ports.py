"""The tests that a project brings pass after honest edits of its owner: many at once here, each alone at night."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.support.projects.ports import OTHER_DEFAULTS, TOGETHER, failures

OF_A_LAUNCHER = {"init_method", "nproc"}


def test_every_option_is_tried_with_another_default(package: Callable[..., Any]) -> None:
    defaults = {field.name: field.default for field in fields(package("config").Config)}
    assert defaults.keys() - OF_A_LAUNCHER == OTHER_DEFAULTS.keys()
    assert {name for name, value in OTHER_DEFAULTS.items() if value == defaults[name]} == {"static_graph"}


@pytest.mark.parametrize("edits", TOGETHER, ids=lambda edits: edits[0].__name__)
def test_a_project_passes_its_own_tests_after_honest_edits(
    edits: tuple[Callable[[Path], None], ...], own_project: Render
) -> None:
    project = own_project()
    for edit in edits:
        edit(project)
    said = failures(project, "tests/test_exact.py", "tests/test_export.py", "tests/test_loading.py")
    assert not said, said
