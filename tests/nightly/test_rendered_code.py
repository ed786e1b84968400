"""The default project passes the commands of its own CI."""

import os
import shlex
import sys

import pytest
import yaml

from tests.conftest import Render
from tests.support.processes import output_of


def test_the_checks_of_the_projects_own_ci_pass(own_project: Render, pytestconfig: pytest.Config) -> None:
    place = own_project()  # test_every_combination.py asks the same tools about all others
    (job,) = yaml.safe_load((place / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    _, install, *checks, tests = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    assert install[-6:] == ["pip", "install", "-e", ".", "--group", "dev"]
    assert checks == [["black", "--check", "."], ["ruff", "check", "."], ["mypy"]]
    assert tests == ["pytest"]
    assert pytestconfig.cache
    environment = os.environ | {"MYPY_CACHE_DIR": str(pytestconfig.cache.mkdir("mypy_of_rendered_code"))}
    for check in checks:
        printed = output_of([sys.executable, "-m", *check], place, environment)
    assert f"no issues found in {len([*place.rglob('*.py')])} source files" in printed
