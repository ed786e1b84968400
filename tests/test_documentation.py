"""The documentation says what the template is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from generator.documentation import documented_files
from generator.questions import TEMPLATE, read_questions

from .conftest import Render

MADE_FILES = ["README.md", "docs/example/train.py"]


@pytest.mark.parametrize("path", MADE_FILES)
def test_made_documentation_is_up_to_date(path: str) -> None:
    made = documented_files()
    assert sorted(map(str, made)) == MADE_FILES
    assert (TEMPLATE / path).read_text() == made[Path(path)], "run: ddp-template docs"


def test_the_table_has_every_question_and_choice() -> None:
    readme = (TEMPLATE / "README.md").read_text()
    for question in read_questions():
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{question.key}` |"))
        for choice in question.choices:
            assert f"`{str(choice.value).lower()}`" in row


@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "launch", "slurm", "mpirun"])
def test_options_that_a_readme_names_exist(launcher: str, project: Render) -> None:
    place = project(launcher=launcher, amp="torch")
    shown = subprocess.run(
        [sys.executable, "train.py", "--help"], cwd=place, capture_output=True, text=True, check=True
    )
    readme = (place / "README.md").read_text()
    others = {"--standalone", "--nproc-per-node", "--ntasks", "--nodes", "--data", "--help", "--signal"}
    named = (
        set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", readme)) - others - {"--allow-run-as-root", "--backend-store-uri"}
    )
    assert {"--resume", "--run-dir", "--keep"} <= named
    for option in named:
        assert option in shown.stdout, f"README.md names {option}"
