"""`ddp-template new` and `copier copy`, as a user starts them: a project from answers on the command line."""

import re
import subprocess
import sys
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.git import run
from generator.render.project import read_tree
from generator.render.snapshot import take_snapshot
from generator.update.replay import put_under_git
from tests.support.cli import ddp_template

ANSWERS = {"project_name": "Digits & co", "author_name": 'Ann "A" O\'Hara', "launcher": "slurm", "sync_bn": "true"}


def copier(folder: Path, *arguments: str | Path) -> None:
    verb, *others = arguments
    command = [sys.executable, "-m", "copier", verb, "--quiet", "--defaults", "--vcs-ref", "HEAD", *others]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_the_project_is_the_one_that_copier_makes_and_its_next_steps_lead_into_it(tmp_path: Path) -> None:
    answers = [f"{key}={value}" for key, value in ANSWERS.items()]
    options = [part for answer in answers for part in ("--answer", answer)]
    printed = ddp_template("new", "of ann/ann's project", *options, cwd=tmp_path).output
    copier(tmp_path, "copy", *(part for answer in answers for part in ("--data", answer)), TEMPLATE, "by copier")
    project = tmp_path / "of ann" / "ann's project"
    assert {"train.py", "launch.sh", "digits_co/model.py"} <= read_tree(project).keys()
    assert read_tree(project) == read_tree(tmp_path / "by copier")
    recorded = (project / ".copier-answers.yml").read_text()
    assert re.search(rf"^_commit: \S+\n_src_path: {TEMPLATE}$", recorded, flags=re.MULTILINE)

    steps = [line.strip() for line in printed.partition("Next:\n")[2].splitlines()]
    change_folder = next(step for step in steps if step.startswith("cd "))
    shell = ["bash", "-c", f"{change_folder} && pwd"]
    at = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert at.stdout == f"{project}\n"
    install = "python -m pip install --upgrade pip && pip install -e . --group dev"
    assert {install, "pytest", "srun --ntasks=2 python train.py"} <= set(steps)


def test_a_copy_is_named_by_its_folder_and_knows_its_template_from_anywhere(tmp_path: Path) -> None:
    put_under_git(take_snapshot(tmp_path / "template"))
    copier(tmp_path, "copy", "template", "My net")
    assert (tmp_path / "My net" / "my_net" / "model.py").is_file()
    put_under_git(tmp_path / "My net")
    run(tmp_path, "clone", "--quiet", "My net", "deeper/clone")
    copier(tmp_path / "deeper" / "clone", "update")
    for project in ("My net", "deeper/clone"):
        assert (tmp_path / project / "README.md").read_text().startswith("# My net\n")
