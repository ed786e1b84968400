"""The default project passes the commands of its own CI."""

import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import Render
from tests.support.processes import output_of


@pytest.fixture(scope="session")
def tool_caches(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which tools write nothing into a project, and mypy remembers torch between sessions."""
    caches = tmp_path_factory.mktemp("caches")
    assert pytestconfig.cache
    mypy = pytestconfig.cache.mkdir("mypy_of_rendered_code")
    own = {
        "BLACK_CACHE_DIR": str(caches / "black"),
        "RUFF_CACHE_DIR": str(caches / "ruff"),
        "MYPY_CACHE_DIR": str(mypy),
    }
    return {**os.environ, **own}


def ci_commands(project: Path) -> list[list[str]]:
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    return [shlex.split(step["run"]) for step in job["steps"] if "run" in step]


def test_the_checks_of_the_projects_own_ci_pass(project: Render, tool_caches: dict[str, str]) -> None:
    place = project()  # test_every_combination.py asks the same tools about all others
    _, install, *checks, tests = ci_commands(place)  # tests/updates/ tries the first
    assert install[-6:] == ["pip", "install", "-e", ".", "--group", "dev"]
    assert checks == [["black", "--check", "."], ["ruff", "check", "."], ["mypy"]]
    assert tests == ["pytest"]
    for check in checks:
        printed = output_of([sys.executable, "-m", *check], place, tool_caches)
        if check == ["mypy"]:
            assert f"no issues found in {len([*place.rglob('*.py')])} source files" in printed
