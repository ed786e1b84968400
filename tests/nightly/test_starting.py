"""What a program does not need it does not import: not for --help or a refusal, nor for answers that were not given."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from generator.answers.questions import read_questions
from tests.conftest import Render

CHOICES = {question.key: [choice.value for choice in question.choices] for question in read_questions()}
# What torch itself imports and what imports of it the program cannot help.
BASELINE = "import torch, torch._dynamo, torch.distributed.nn.functional, torch.utils.data, numpy"


def imported(project: Path, *arguments: str, code: int = 0) -> tuple[set[str], str]:
    """The modules that a Python process imports, by its own record, and what it printed beside that."""
    env = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "PYTHONPATH": str(project)}
    done = subprocess.run([sys.executable, *arguments], cwd=project, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    names = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "os" in names, "the record is not what it was"
    printed = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    return set(names), done.stdout + "\n".join(printed)


def third_party(names: set[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in names}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")}


@pytest.mark.parametrize("launcher", CHOICES["launcher"])
@pytest.mark.parametrize(("option", "code", "answer"), [("--help", 0, "--global-batch-size"), ("--lrr", 2, "--lrr")])
def test_help_and_refusals_do_without_torch(
    launcher: str, option: str, code: int, answer: str, project: Render
) -> None:
    names, printed = imported(project(launcher=launcher), "train.py", option, code=code)
    assert answer in printed
    assert not {"torch", "numpy", "tqdm"} & names


@pytest.mark.parametrize("logging", CHOICES["logging"])
def test_the_program_imports_what_it_depends_on_and_no_more(logging: str, project: Render) -> None:
    """Loggers that are slow to import wait for rank 0."""
    folder = project(logging=logging)
    base, _ = imported(folder, "-c", BASELINE)
    own, _ = imported(folder, "-c", "import train")
    allowed = {"ddp_project", "train", "tyro", "tqdm", "numpy", "torch"}
    allowed |= {top for tops in map(import_names, requirements("tyro")) for top in tops}
    assert third_party(own) - third_party(base) <= allowed


def requirements(package: str) -> list[str]:
    lines = map(Requirement, metadata.requires(package) or [])
    return [
        canonicalize_name(line.name) for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})
    ]


def import_names(package: str) -> list[str]:
    found = metadata.packages_distributions().items()
    return [name for name, owners in found if package in [str(canonicalize_name(owner)) for owner in owners]]
