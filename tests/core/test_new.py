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


def assert_refused(folder: Path, destination: str, *answers: str) -> str:
    """The command ends with code 2, one line that says why, and the folder as it was. Returns the reason."""
    before = snapshot_of(folder)
    done = new(folder, destination, *answers, code=2)
    assert done.stdout == ""
    line = re.fullmatch(r"error: ([^\n]{20,})\n", done.stderr)
    assert line, done.stderr
    assert snapshot_of(folder) == before
    return line[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project that the command made of ANSWERS, in an existing empty folder, and what it printed."""
    folder = tmp_path_factory.mktemp("new")
    (folder / "ann's project").mkdir()
    done = new(folder, "ann's project", *(f"{key}={value}" for key, value in ANSWERS.items()))
    return folder / "ann's project", done.output


def without_source(project: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all files, without the lines in which Copier records where and when it found the template."""
    files = snapshot_of(project)
    mode, answers = files[".copier-answers.yml"]
    files[".copier-answers.yml"] = mode, re.sub(rb"^_(commit|src_path): .*\n", b"", answers, flags=re.MULTILINE)
    return files


def test_the_project_is_the_one_that_copier_makes(made: tuple[Path, str], tmp_path: Path) -> None:
    data = [part for key, value in ANSWERS.items() for part in ("--data", f"{key}={value}")]
    copier = [sys.executable, "-m", "copier", "copy", "--quiet", "--defaults", "--vcs-ref", "HEAD", *data]
    subprocess.run([*copier, TEMPLATE, tmp_path / "project"], check=True, capture_output=True)
    by_new, by_copier = without_source(made[0]), without_source(tmp_path / "project")
    assert by_new.keys() == by_copier.keys()
    assert [path for path in by_new if by_new[path] != by_copier[path]] == []
    assert {"train.py", "launch.sh", "digits_co/model.py"} <= by_new.keys()


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


def test_its_answers_name_the_template_that_it_came_from(made: tuple[Path, str]) -> None:
    answers = (made[0] / ".copier-answers.yml").read_text()
    assert f"\n_src_path: {TEMPLATE}\n" in answers
    assert re.search(r"^_commit: \S+$", answers, flags=re.MULTILINE)


def test_the_next_steps_are_printed_and_lead_into_the_project(made: tuple[Path, str]) -> None:
    project, printed = made
    steps = [line.strip() for line in printed.partition("Next:\n")[2].splitlines()]
    change_folder = next(step for step in steps if step.startswith("cd "))
    shell = ["bash", "-c", f"{change_folder} && pwd"]
    at = subprocess.run(shell, cwd=project.parent, capture_output=True, text=True, check=True)
    assert at.stdout == f"{project}\n"
    assert "python -m pip install --upgrade pip && pip install -e . --group dev" in steps
    assert "pytest" in steps
    assert "srun --ntasks=2 python train.py" in steps


def test_a_folder_that_does_not_exist_is_made_with_its_parents(tmp_path: Path) -> None:
    new(tmp_path, "some/where")
    assert (tmp_path / "some" / "where" / "train.py").is_file()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["luncher=slurm"], "luncher is no question of the template: its questions are project_name, "),
        (["train_on_two=touch x"], "train_on_two is no question of the template"),
        (["_src_path=x"], "_src_path is no question of the template"),
        (["=slurm"], "is no question of the template"),
        (["launcher=ssh"], "'ssh' is not in ['torchrun', "),
        (["launcher="], "'' is not in ['torchrun', "),
        (["backend=mpi"], "mpirun gives this backend its ranks, so it needs launcher=mpirun (here it is torchrun)"),
        (["package_name=torch"], "try torch_ddp"),
        (["description="], "it must not be empty"),
        (["author_name=a\nb"], "give one line of plain text"),
        (["author_name=\udcff"], "give one line of plain text"),
        (["sync_bn=maybe"], "sync_bn=maybe is not understood"),
        (["sync_bn="], "sync_bn= is not understood"),
        (["launcher"], "launcher is no KEY=VALUE, such as launcher=slurm"),
        (["launcher=slurm", "amp=torch", "launcher=spawn"], "launcher is given twice"),
        (["launcher=slurm", "launcher=slurm"], "launcher is given twice"),
        (["two\nlines"], "is no KEY=VALUE"),
        (["two\nlines=x"], "is no question of the template"),
    ],
    ids=lambda value: ",".join(map(ascii, value)) if isinstance(value, list) else "",
)
def test_an_answer_that_does_not_do_is_refused_in_one_line(tmp_path: Path, answers: list[str], reason: str) -> None:
    assert reason in assert_refused(tmp_path, "project", *answers)


def test_a_folder_that_holds_something_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("mine\n")
    assert "holds something already" in assert_refused(tmp_path, "project")


def test_a_folder_that_holds_only_a_hidden_file_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    assert "holds something already" in assert_refused(tmp_path, "project")


def test_a_file_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "project").write_text("mine\n")
    assert "holds something already" in assert_refused(tmp_path, "project")


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    assert "file" in assert_refused(tmp_path, "file/project")
