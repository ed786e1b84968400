"""The tests that a project brings, and the commands of its CI, pass in it as it is rendered."""

import os
import re
import shlex
import sys
import time
from typing import Any

import pytest
import yaml

from tests.conftest import Measured, Render
from tests.support.processes import output_of
from tests.support.projects.ports import TOGETHER, failures
from tests.support.training import HAS_GPU

ANSWERS = [
    {},
    {"launcher": "spawn", "amp": "torch", "logging": "csv"},
    {"launcher": "slurm", "amp": "apex", "sync_bn": True, "logging": "mlflow"},
    {"launcher": "mpirun", "backend": "mpi", "logging": "tensorboard"},
]


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda answers: answers.get("launcher", "default"))
def test_a_fresh_project_passes_its_own_tests(answers: Any, own_project: Render, measured: Measured) -> None:
    started = time.perf_counter()
    printed = output_of([sys.executable, "-m", "pytest", "-q"], own_project(**answers))
    chosen = " ".join(f"{key}={value}" for key, value in answers.items()) or "the default answers"
    measured("short_form", f"all tests of a project with {chosen} (seconds)", round(time.perf_counter() - started, 1))
    skipped = "" if HAS_GPU else ", 1 skipped"
    assert re.search(rf"^\d+ passed{skipped} in", printed, re.MULTILINE), "only what needs a GPU may be skipped"


def test_the_checks_of_the_projects_own_ci_pass(own_project: Render, pytestconfig: pytest.Config) -> None:
    place = own_project()  # test_combinations.py asks the same tools about all others
    (job,) = yaml.safe_load((place / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    _, install, *checks, tests = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    assert install[-6:] == ["pip", "install", "-e", ".", "--group", "dev"]
    assert [*checks, tests] == [["black", "--check", "."], ["ruff", "check", "."], ["mypy"], ["pytest"]]
    assert pytestconfig.cache
    environment = os.environ | {"MYPY_CACHE_DIR": str(pytestconfig.cache.mkdir("mypy_of_rendered_code"))}
    for check in checks:
        printed = output_of([sys.executable, "-m", *check], place, environment)
    assert f"no issues found in {len([*place.rglob('*.py')])} source files" in printed


def test_a_project_passes_its_own_tests_after_honest_edits(own_project: Render) -> None:
    project = own_project()
    for edit in TOGETHER:
        edit(project)
    assert not failures(project, "tests/test_exact.py", "tests/test_export.py", "tests/test_loading.py")
