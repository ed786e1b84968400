"""The tests that a project brings pass in it as it is rendered."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Measured
from tests.support.processes import output_of
from tests.support.training import HAS_GPU

ANSWERS = [
    {},
    {"launcher": "spawn", "amp": "torch", "logging": "csv"},
    {"launcher": "slurm", "amp": "apex", "sync_bn": True, "logging": "mlflow"},
    {"launcher": "mpirun", "backend": "mpi", "logging": "tensorboard"},
]


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda answers: answers.get("launcher", "default"))
def test_a_fresh_project_passes_its_own_tests(
    answers: dict[str, object], own_project: Callable[..., Path], measured: Measured
) -> None:
    started = time.perf_counter()
    printed = output_of([sys.executable, "-m", "pytest", "-q"], own_project(**answers))
    chosen = " ".join(f"{key}={value}" for key, value in answers.items()) or "the default answers"
    measured("short_form", f"all tests of a project with {chosen} (seconds)", round(time.perf_counter() - started, 1))
    skipped = "" if HAS_GPU else ", 1 skipped"
    assert re.search(rf"^\d+ passed{skipped} in", printed, re.MULTILINE), "only what needs a GPU may be skipped"
