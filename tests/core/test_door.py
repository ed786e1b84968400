"""What an owner's files may import: a release may add a name to this list, and change or take away none."""

import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from mypy import api

from tests.conftest import Package, Render

NAMES = "gather_with_grad reduce_tensor NonNegativeFloat NonNegativeInt NonNegativeIntOrAuto OptionalPath PositiveInt"
LATER = "UserError load_model AllSamples Mean current_step Optimizers Mixture by_length tokens_per_batch weighted"


def test_an_owners_files_import_from_one_place(package: Package, project: Render) -> None:
    runtime = package("runtime")
    assert " ".join(runtime.NAMES.values()) == f"{NAMES} Seconds UnitFloat {LATER} Data Stream"
    assert all(getattr(runtime, name) is not None for name in " ".join(runtime.NAMES.values()).split())
    for file in ("task", "model", "data", "options"):
        for task in ("digits", "language", "images", "tabular"):
            assert ".runtime." not in (project(task=task) / "ddp_project" / f"{file}.py").read_text(), (task, file)
    program = "import sys; from ddp_project.runtime import PositiveInt, UserError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=project(), check=True)


def test_a_misspelt_name_is_refused(package: Package, project: Render, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'UsrError'"):
        _ = package("runtime").UsrError
    (tmp_path / "wrong.py").write_text("from ddp_project.runtime import UserError, UsrError\n")
    with chdir(project()):
        found, *_ = api.run(["--cache-dir", str(tmp_path / "cache"), "ddp_project", str(tmp_path / "wrong.py")])
    assert 'has no attribute "UsrError"; maybe "UserError"?' in found
