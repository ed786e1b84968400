"""The commands of AGENTS.md run as written, in a project of every launcher and in this repository."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from generator.answers.questions import TEMPLATE
from generator.render.project import read_files
from tests.conftest import Render
from tests.support.cli import COMMAND
from tests.support.processes import PATH, output_of
from tests.support.projects.instructions import read_commands
from tests.support.schedulers import mpi
from tests.support.schedulers.slurm import Cluster

PROJECTS = [
    {},
    {"launcher": "launch", "task": "images"},
    {"launcher": "spawn", "task": "language"},
    {"launcher": "slurm", "amp": "apex"},
    pytest.param({"launcher": "mpirun", "backend": "mpi"}, marks=mpi.NEEDS_OPENMPI),
    {"launcher": "kubernetes", "task": "tabular"},
    {"launcher": "ray", "backend": "nccl"},
]


@pytest.mark.parametrize("answers", PROJECTS, ids=lambda answers: answers.get("launcher", "torchrun"))
def test_the_commands_of_agents_md_run_as_written(
    answers: Any, own_project: Render, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = own_project(**answers)
    before = read_files(place)
    environment = mpi.environment("Open MPI", tmp_path) if answers.get("launcher") == "mpirun" else {"PATH": PATH}
    assert request.config.cache
    cache = request.config.cache.mkdir("mypy_of_rendered_code")
    commands = read_commands((place / "AGENTS.md").read_text())
    for command in commands:
        if command.startswith("srun "):
            cluster: Cluster = request.getfixturevalue("slurm_cluster")
            words = command.replace(" python ", f" {sys.executable} ").split()
            cluster.run(words[0], "--chdir", place, *words[1:])
        else:
            output_of(
                ["bash", "-c", command], place, os.environ | {"MYPY_CACHE_DIR": str(cache)} | environment, timeout=600
            )
    assert commands[-1] == "pytest"
    assert len([*place.glob("runs/*/checkpoints/best.pt")]) == 2
    after = read_files(place)
    assert {path for path in before if before[path] != after[path]} == set(), "black changes nothing"


def test_the_quick_commands_of_the_repositorys_agents_md_run_as_written(tmp_path: Path) -> None:
    """.ci/run has the others, and tests/nightly/updates the check of updates."""
    (tmp_path / "here").mkdir()
    quick = ("ddp-template new ", "ddp-template diff ", "ddp-template check ")
    commands = [each for each in read_commands((TEMPLATE / "AGENTS.md").read_text()) if each.startswith(quick)]
    assert len(commands) == len(quick)
    for command in commands:
        output_of([COMMAND, *command.split()[1:]], tmp_path / "here", timeout=1800)
    assert (tmp_path / "project" / "AGENTS.md").exists()
