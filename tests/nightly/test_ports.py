"""The tests that a project brings pass after each honest edit of its owner."""

import pytest

from tests.conftest import Render
from tests.support.projects.ports import PORTS, failures


@pytest.mark.parametrize("port", PORTS)
def test_a_project_passes_its_own_tests_after_an_honest_edit(port: str, own_project: Render) -> None:
    project = own_project()
    PORTS[port](project)
    assert not (said := failures(project)), said
