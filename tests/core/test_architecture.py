"""The folders of the generator import in one direction, as pyproject.toml says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from generator.answers.questions import TEMPLATE

LINT = str(Path(sys.executable).with_name("lint-imports"))


def lint(folder: Path) -> tuple[int, str]:
    """Let import-linter look at the generator in a folder; returns its exit code and output."""
    done = subprocess.run(
        [LINT, "--no-cache"], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_imports_point_one_way() -> None:
    code, said = lint(TEMPLATE)
    assert code == 0, said


@pytest.mark.parametrize(
    ("module", "imported", "broken"),
    [
        ("answers/questions", "from generator.render import git", "The folders of the generator"),
        ("check/static", "from generator.check import pipeline", "A check is a pipeline of parts"),
        ("render/git", "from generator.render import snapshot", "No circles"),
        ("update/replay", "import typer", "Only commands"),
    ],
)
def test_an_import_that_points_back_is_refused(module: str, imported: str, broken: str, tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE / "generator", tmp_path / "generator")
    shutil.copy(TEMPLATE / "pyproject.toml", tmp_path)
    with open(tmp_path / "generator" / f"{module}.py", "a") as file:
        file.write(f"{imported}\n")
    code, said = lint(tmp_path)
    assert code == 1
    assert [line for line in said.splitlines() if broken in line and "BROKEN" in line]
