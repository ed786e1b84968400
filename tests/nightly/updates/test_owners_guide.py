"""UPDATING.md, followed word by word."""

import os
import re
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from generator.render.git import conflicts, run
from generator.render.project import read_files
from generator.update.history import NEXT, clone_history, read_releases
from generator.update.replay import commit_all, copy_project, put_under_git, update
from tests.support.processes import output_of
from tests.support.projects.edits import EDITS, another_data_set, another_model
from tests.support.projects.instructions import read_guide
from tests.support.versions import MadeUp, append, change_many_files, replace
from tools.rewriting import Rewrite

Shell = Callable[..., str]
HARMFUL = "[apply]\nwhitespace = error\n[status]\nshowUntrackedFiles = no\n[merge]\nconflictStyle = zdiff3\n"
HARMFUL += "[core]\nquotePath = false\n"


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return what types commands into bash, in an environment of the owner's own that has all packages of this one."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True, upgrade_deps=True)  # --group needs pip 25.1
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (next(place.glob("lib/*/site-packages")) / "others.pth").write_text(packages)
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Here einops, which the owner depends on, is not to be fetched.
    own = {"PATH": path, "HOME": str(place), "PIP_NO_DEPS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def type_in(commands: str, folder: Path, code: int = 0) -> str:
        return output_of(["bash", "-c", commands], folder, {**os.environ, **own}, code=code)

    return type_in


@pytest.fixture
def project(made_up: MadeUp, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    copy_project(made_up.folder, "v1.0.0", {}, folder)
    put_under_git(folder)
    for name in ("averaged_weights", "new_option", "added_metric", "early_end", "added_dependency", "own_file"):
        EDITS[name](folder)
    commit_all(folder)
    return folder


def release_next(versions: MadeUp) -> None:
    change_many_files(versions)
    versions.release("1.1.0")


def test_an_update_is_taken_over(project: Path, made_up: MadeUp, shell: Shell) -> None:
    release_next(made_up)
    guide, before = read_guide(project), read_files(project)
    # As one session: `cd -` goes back to where the first commands were typed. Not even set -e ends it in `a && b`.
    shell(f"set -e\n{guide.start}test $? = 0\n{guide.finish}test $? = 0\n{guide.take_over}", project)
    after = read_files(project)
    of_both = {  # what the new version brings, and what the owner has edited
        "train.py": ["run.model.train()  # with dropout", "good enough"],
        "ddp_project/config.py": ["epochs: PositiveInt = 21", "label_smoothing"],
        "pyproject.toml": ["numpy>=1.26.4", "einops"],
        "ddp_project/runtime/sums.py": ["New in this version"],
        ".copier-answers.yml": ["_commit: v1.1.0"],
        "ddp_project/task.py": ['"error"'],
        "notes.md": ["What I tried"],
    }
    for path, texts in of_both.items():
        assert [text for text in texts if text not in after[path][1].decode()] == []
    assert after["ddp_project/model.py"] == before["ddp_project/model.py"]
    assert run(project, "status", "--porcelain") == ""
    assert not (project.parent / "project-update").exists()


def test_a_template_that_has_moved_is_updated_from(project: Path, made_up: MadeUp, shell: Shell) -> None:
    release_next(made_up)
    moved = made_up.folder.rename(made_up.folder.with_name("moved"))
    guide, address = read_guide(project), "https://github.com/OWNER/ddp-template.git"
    assert "must be a directory" in shell("copier update --defaults 2>&1", project, code=1)
    assert address in guide.move
    printed = shell(f"set -e\n{guide.move.replace(address, str(moved))}\n{guide.start}", project)
    answers = yaml.safe_load((project.parent / "project-update" / ".copier-answers.yml").read_text())
    assert (answers["_commit"], answers["_src_path"]) == ("v1.1.0", str(moved))
    assert "Warning" not in printed  # of former answers that are not there, as Copier prints it


def test_a_project_of_version_1_is_moved(shell: Shell, tmp_path: Path) -> None:
    history, project = clone_history(tmp_path / "history", read_releases()), tmp_path / "project"
    copy_project(history.folder, "v1.1.0", {}, project)
    put_under_git(project)
    Rewrite("F.cross_entropy($$$A)", "{} * 1.0", "compute").apply(project / "ddp_project" / "task.py")
    commit_all(project)
    update(project, NEXT)
    guide = read_guide(project)
    _install, move = guide.migrate.splitlines()
    shell(f"set -e\n{move}\n{guide.finish}test $? = 0", project)  # which runs the project's tests
    assert "* 1.0" in (project / "ddp_project" / "task.py").read_text()
    assert run(project, "status", "--porcelain") == ""


def conflicting(project: Path, versions: MadeUp) -> None:
    """Let the owner and the template change the same line."""
    Rewrite("run.model.train()", "{}  # mine").apply(project / "train.py")
    commit_all(project)
    release_next(versions)


def ci_step(project: Path) -> str:
    workflow = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())
    return str(next(step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step))


def test_a_conflict_stops_the_owner_and_ci_and_can_be_solved(project: Path, made_up: MadeUp, shell: Shell) -> None:
    conflicting(project, made_up)
    guide, copy = read_guide(project), project.parent / "project-update"
    shell(ci_step(project), project)
    printed = shell(guide.start, project)
    assert "both modified:   train.py" in printed
    printed = shell(guide.finish, copy, code=1)
    assert re.search(r"^train\.py:\d+:<<<<<<< before updating$", printed, re.MULTILINE)
    run(copy, "commit", "--quiet", "--message", "Oversight")
    assert "<<<<<<< before updating" in shell(ci_step(project), copy, code=1)
    program = (copy / "train.py").read_text()
    begin, middle, end = (program.index(mark) for mark in ("<<<<<<< ", "=======\n", ">>>>>>> "))
    first, rest = program.index("\n", begin) + 1, program.index("\n", end) + 1
    (copy / "train.py").write_text(program[:begin] + program[first:middle] + program[rest:])
    shell(f"git add --all && git commit -m Solved && {ci_step(project)}", copy)
    shell(f"cd {copy}; {guide.take_over}", project)
    (project / "edit.rej").touch()
    run(project, "add", "--all")
    shell(ci_step(project), project, code=1)
    assert "run.model.train()  # mine" in (project / "train.py").read_text()


def test_a_package_that_was_renamed_is_updated_under_its_new_name(project: Path, made_up: MadeUp, shell: Shell) -> None:
    another_model(project)
    another_data_set(project)
    commit_all(project)
    release_next(made_up)
    guide = read_guide(project)
    refused = shell("copier update --defaults --data package_name=my_net", project, code=1)
    assert "no update renames the package: UPDATING.md shows how" in refused
    assert run(project, "status", "--porcelain") == ""
    shell(f"set -e\n{guide.rename}", project)
    edits = read_files(project)
    shell("copier update --defaults", project)
    after = read_files(project)
    assert {path for path in after if path.startswith("ddp_project/")} == set()
    assert after.keys() - edits.keys() == {"my_net/runtime/sums.py"}
    assert "epochs: PositiveInt = 21" in after["my_net/config.py"][1].decode()
    assert (after["my_net/model.py"], conflicts(after)) == (edits["my_net/model.py"], [])
    shell("python train.py --device cpu --max-steps 2 --run-dir runs/renamed", project)


def test_a_package_with_the_name_of_its_task_is_renamed_in_an_interactive_shell(
    made_up: MadeUp, shell: Shell, tmp_path: Path
) -> None:
    """Which takes "!" between double quotes for an earlier command."""
    project, picture = tmp_path / "project", b"\x89PNG\0 digits \0"
    copy_project(made_up.folder, "v1.0.0", {"package_name": "digits", "task": "digits"}, project)
    (project / "picture.png").write_bytes(picture)
    put_under_git(project)
    shell(f"bash -i <<'END'\n{read_guide(project).rename}END", project)
    answers = yaml.safe_load((project / ".copier-answers.yml").read_text())
    assert (answers["package_name"], answers["task"]) == ("my_net", "digits")
    assert (project / "picture.png").read_bytes() == picture
    assert run(project, "status", "--porcelain") == ""
    shell("python train.py --help && python train.py --device cpu --max-steps 2 --run-dir runs/renamed", project)


def test_commands_that_fail_lose_nothing(project: Path, made_up: MadeUp, shell: Shell, tmp_path: Path) -> None:
    release_next(made_up)
    guide, copy = read_guide(project), tmp_path / "project-update"
    copy.mkdir()
    (copy / "work").write_text("of an update that is not finished\n")
    before = read_files(project)
    shell(guide.start, project, code=128)
    assert read_files(project) == before
    assert (copy / "work").exists()
    shell(guide.give_up, project)
    shell(guide.start, project)
    shell("git add --all && git commit --quiet --message Updated", copy)
    replace(project / "notes.md", "What I tried", "What I try")
    commit_all(project)
    assert "Not possible to fast-forward" in shell(f"cd {copy}; {guide.take_over}", project)
    assert copy.exists()
    shell("git pull --no-rebase --no-edit", copy)
    shell(f"cd {copy}; {guide.take_over}", project)
    assert not copy.exists()
    assert "What I try" in (project / "notes.md").read_text()
    assert "epochs: PositiveInt = 21" in (project / "ddp_project" / "config.py").read_text()


def test_a_project_that_is_not_committed_is_left_alone(made_up: MadeUp, shell: Shell, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    copy_project(made_up.folder, "v1.0.0", {}, outer / "net")
    (outer / ".gitignore").write_text("/net/\n")
    put_under_git(outer)
    EDITS["new_option"](outer / "net")
    release_next(made_up)
    before = read_files(outer / "net")
    shell(read_guide(outer / "net").start, outer / "net", code=128)
    assert read_files(outer / "net") == before


def test_settings_of_the_owners_git_drop_no_edit(project: Path, made_up: MadeUp, shell: Shell, tmp_path: Path) -> None:
    (project / "größe.csv").write_text("1, 2, \n")
    append(project / "AGENTS.md", "Mine.\n")
    conflicting(project, made_up)
    (tmp_path / "ignored").write_text("AGENTS.md\n")
    (tmp_path / "gitconfig").write_text(f"{HARMFUL}excludesFile = {tmp_path / 'ignored'}\n")
    printed = shell(f"export GIT_CONFIG_GLOBAL={tmp_path / 'gitconfig'}\n{read_guide(project).start}", project)
    assert "both modified:   train.py" in printed
    copy = tmp_path / "project-update"
    assert "run.model.train()  # mine" in (copy / "train.py").read_text()
    assert "label_smoothing" in (copy / "ddp_project" / "config.py").read_text()
    assert (copy / "AGENTS.md").read_text().endswith("Mine.\n")
    assert "ddp_project/runtime/sums.py" in printed


def test_files_that_git_ignores_are_not_overwritten(project: Path, made_up: MadeUp, shell: Shell) -> None:
    (project / ".git" / "info").mkdir(exist_ok=True)
    (project / ".git" / "info" / "exclude").write_text("sums.py\n")
    (project / "ddp_project" / "runtime" / "sums.py").write_text("# mine\n")
    release_next(made_up)
    guide = read_guide(project)
    shell(f"{guide.start}git add --all --force && git commit --quiet --message Updated\n{guide.take_over}", project)
    assert (project / "ddp_project" / "runtime" / "sums.py").read_text() == "# mine\n"


def test_a_package_behind_a_symbolic_link_is_refused(project: Path, made_up: MadeUp, shell: Shell) -> None:
    move = "mkdir src && git mv ddp_project src/ && ln -s src/ddp_project && git add --all && git commit -m Moved"
    shell(move, project)
    release_next(made_up)
    assert "the package is a symbolic link: make it a real folder" in shell(read_guide(project).start, project, code=1)
