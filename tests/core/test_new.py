"""`ddp-template new`, as a user starts it: a project from answers on the command line, or a line that says why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from generator.answers.questions import TEMPLATE
from generator.render.git import run
from generator.render.snapshot import take_snapshot
from generator.update.replay import put_under_git
from tests.support.cli import Result, ddp_template

ANSWERS = {"project_name": "Digits & co", "author_name": 'Ann "A" O\'Hara', "launcher": "slurm", "sync_bn": "true"}


def new(folder: Path, destination: str, *answers: str, code: int = 0) -> Result:
    """Run the command in a folder, with each answer behind --answer. Fails if it ends with another exit code."""
    options = [part for answer in answers for part in ("--answer", answer)]
    return ddp_template("new", destination, *options, cwd=folder, code=code)


def snapshot_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all files below a folder, by path; folders have no content."""
    paths = sorted(folder.rglob("*"))
    contents = (path.read_bytes() if path.is_file() else b"" for path in paths)
    return {str(p.relative_to(folder)): (p.stat().st_mode, content) for p, content in zip(paths, contents, strict=True)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project that the command made of ANSWERS, in a folder whose parent is new, too, and what it printed."""
    folder = tmp_path_factory.mktemp("new")
    done = new(folder, "of ann/ann's project", *(f"{key}={value}" for key, value in ANSWERS.items()))
    return folder / "of ann" / "ann's project", done.output


def test_the_project_is_the_one_that_copier_makes_and_names_its_template(
    made: tuple[Path, str], tmp_path: Path
) -> None:
    data = [part for key, value in ANSWERS.items() for part in ("--data", f"{key}={value}")]
    copier = [sys.executable, "-m", "copier", "copy", "--quiet", "--defaults", "--vcs-ref", "HEAD", *data]
    subprocess.run([*copier, TEMPLATE, tmp_path / "project"], check=True, capture_output=True)
    by_new, by_copier = snapshot_of(made[0]), snapshot_of(tmp_path / "project")
    assert by_new.keys() == by_copier.keys()
    assert [path for path in by_new if by_new[path] != by_copier[path]] in ([], [".copier-answers.yml"])
    assert {"train.py", "launch.sh", "digits_co/model.py"} <= by_new.keys()
    told = [
        re.sub("^_(commit|src_path): .*\n", "", files[".copier-answers.yml"][1].decode(), flags=re.MULTILINE)
        for files in (by_new, by_copier)
    ]
    assert told[0] == told[1]
    assert f"\n_src_path: {TEMPLATE}\n" in by_new[".copier-answers.yml"][1].decode()
    assert re.search(r"^_commit: \S+$", by_new[".copier-answers.yml"][1].decode(), flags=re.MULTILINE)


def test_a_copy_is_named_by_its_folder_and_knows_its_template_from_anywhere(tmp_path: Path) -> None:
    copier = [sys.executable, "-m", "copier"]
    put_under_git(take_snapshot(tmp_path / "template"))
    subprocess.run(
        [*copier, "copy", "--quiet", "--defaults", "--vcs-ref", "HEAD", "template", "My net"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "My net" / "README.md").read_text().startswith("# My net\n")
    assert (tmp_path / "My net" / "my_net" / "model.py").is_file()
    put_under_git(tmp_path / "My net")
    run(tmp_path, "clone", "--quiet", "My net", "deeper/clone")
    update = [*copier, "update", "--quiet", "--defaults", "--vcs-ref", "HEAD"]
    subprocess.run(update, cwd=tmp_path / "deeper" / "clone", check=True, capture_output=True)
    assert (tmp_path / "deeper" / "clone" / "README.md").read_text().startswith("# My net\n")


def test_the_next_steps_are_printed_and_lead_into_the_project(made: tuple[Path, str]) -> None:
    project, printed = made
    steps = [line.strip() for line in printed.partition("Next:\n")[2].splitlines()]
    change_folder = next(step for step in steps if step.startswith("cd "))
    shell = ["bash", "-c", f"{change_folder} && pwd"]
    at = subprocess.run(shell, cwd=project.parent.parent, capture_output=True, text=True, check=True)
    assert at.stdout == f"{project}\n"
    assert "python -m pip install --upgrade pip && pip install -e . --group dev" in steps
    assert "pytest" in steps
    assert "srun --ntasks=2 python train.py" in steps


@pytest.mark.parametrize(
    ("destination", "answers", "reason"),
    [
        ("new", ["luncher=slurm"], "luncher is no question of the template: its questions are project_name, "),
        ("new", ["_src_path=x"], "_src_path is no question of the template"),
        ("new", ["=slurm"], "is no question of the template"),
        ("new", ["launcher=ssh"], "'ssh' is not in ['torchrun', "),
        ("new", ["backend=mpi"], "gives this backend its ranks, so it needs launcher=mpirun (here it is torchrun)"),
        ("new", ["package_name=torch"], "try torch_ddp"),
        ("new", ["description="], "it must not be empty"),
        ("new", ["author_name=a\nb"], "give one line of plain text"),
        ("new", ["author_name=\udcff"], "give one line of plain text"),
        ("new", ["sync_bn=maybe"], "sync_bn=maybe is not understood"),
        ("new", ["launcher"], "launcher is no KEY=VALUE, such as launcher=slurm"),
        ("new", ["launcher=slurm", "amp=torch", "launcher=spawn"], "launcher is given twice"),
        ("new", ["two\nlines"], "is no KEY=VALUE"),
        ("full", [], "holds something already"),
        ("hidden", [], "holds something already"),
        ("full/file", [], "holds something already"),
        ("full/file/project", [], "file"),
    ],
    ids=lambda value: ",".join(map(ascii, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_made_is_refused_in_one_line_and_leaves_all_as_it_was(
    destination: str, answers: list[str], reason: str, tmp_path: Path
) -> None:
    for folder in ("full", "hidden/.git"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "full" / "file").write_text("mine\n")
    before = snapshot_of(tmp_path)
    done = new(tmp_path, destination, *answers, code=2)
    assert done.stdout == ""
    line = re.fullmatch(r"error: ([^\n]{20,})\n", done.stderr)
    assert line, done.stderr
    assert reason in line[1]
    assert snapshot_of(tmp_path) == before
