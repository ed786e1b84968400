"""What an owner's files may import: a release may add a name to this list, and change or take away none."""

import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from mypy import api

from tests.conftest import Package, Render
from tests.support.ranks import output_of_fork

NAMES = "gather_with_grad reduce_tensor NonNegativeFloat NonNegativeInt NonNegativeIntOrAuto OptionalPath PositiveInt"
LATER = "UserError load_model AllSamples Mean current_step Optimizers Mixture by_length tokens_per_batch weighted"
ALL = f"{NAMES} Seconds UnitFloat {LATER} Data Stream"
PROGRAMS = [
    *("train", "evaluate", "predict"),
    *(f"ddp_project.{file}" for file in ("task", "model", "data", "runtime.export")),
]


def test_an_owners_files_import_from_one_place(package: Package, project: Render) -> None:
    runtime = package("runtime")
    assert " ".join(runtime.NAMES.values()) == ALL
    assert all(getattr(runtime, name) is not None for name in " ".join(runtime.NAMES.values()).split())
    for file in ("task", "model", "data", "options"):
        for task in ("digits", "language", "images", "tabular"):
            assert ".runtime." not in (project(task=task) / "ddp_project" / f"{file}.py").read_text(), (task, file)
    program = "import sys; from ddp_project.runtime import PositiveInt, UserError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=project(), check=True)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_each_file_may_import_all_names_whichever_is_imported_first(parallel: str, own_project: Render) -> None:
    project, line = own_project(parallel=parallel), "from .config import Config\n"
    for file in ("task", "model", "data"):
        path = project / "ddp_project" / f"{file}.py"
        assert line in path.read_text()
        path.write_text(path.read_text().replace(line, f"{line}from .runtime import {', '.join(ALL.split())}\n"))
    for name in PROGRAMS:
        output_of_fork(f"import {name}", project=project)


def test_a_misspelt_name_is_refused(package: Package, project: Render, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'UsrError'"):
        _ = package("runtime").UsrError
    (tmp_path / "wrong.py").write_text("from ddp_project.runtime import UserError, UsrError\n")
    command = ["--cache-dir", str(tmp_path), "--follow-imports", "skip"]  # it need not read torch
    with chdir(project()):
        found, *_ = api.run([*command, "ddp_project/runtime/__init__.py", str(tmp_path / "wrong.py")])
    assert 'has no attribute "UsrError"; maybe "UserError"?' in found
