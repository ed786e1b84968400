"""ddp-template fleet says where projects differ from their version and what an update would do, and touches none."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from generator.render.git import run
from generator.render.project import ANSWERS_FILE
from generator.update.fleet import examine_all, render_once
from generator.update.history import NEXT, History
from generator.update.replay import commit_all, copy_project, put_under_git
from tests.support.cli import ddp_template
from tests.support.projects.edits import new_option
from tests.support.versions import MadeUp, append, change_many_files, replace


def everything(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """All files below a folder, those of git among them, with the times at which they were written."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(autouse=True)
def _of_the_made_up_clone(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generator.cli.updates.examine_all", partial(examine_all, template=history.folder))


@pytest.fixture(scope="module")
def projects(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    for name in ("edited", "conflicting", "dirty", "unknown", "without-git", "no-answers"):
        copy_project(history.folder, "v1.0.0", {}, folder / name)
    new_option(folder / "edited")
    (folder / "edited" / "note-größe.csv").write_text("7\n")
    replace(folder / "conflicting" / "UPDATING.md", "replaces what you left alone", "replaces what nobody edited")
    replace(folder / "unknown" / ANSWERS_FILE, "_commit: v1.0.0", "_commit: v1.0.0-3-gabcdef0")
    (folder / "no-answers" / ANSWERS_FILE).write_text("{")
    (folder / "foreign").mkdir()
    (folder / "foreign" / ANSWERS_FILE).write_text("_commit: v1.0.0\n_src_path: gh:someone/other\nname: x\n")
    for name in ("edited", "conflicting", "dirty", "unknown", "no-answers", "foreign"):
        put_under_git(folder / name)
    (folder / "dirty" / "notes.md").write_text("not committed\n")
    replace(folder / "dirty" / ANSWERS_FILE, "_commit: v1.0.0", "_commit: v9.9.9")  # nor is this
    shutil.copytree(folder / "edited", folder / os.fsdecode(b"odd-name-\xe9"))
    monorepo = folder / "monorepo"
    monorepo.mkdir()
    copy_project(history.folder, "v1.0.0", {"launcher": "slurm"}, monorepo / "training")
    put_under_git(monorepo)
    (folder / "no project").mkdir()
    return folder


def fleet(folder: Path, *arguments: str) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Run the command, and return its exit code, what it prints and its reports by project."""
    file = folder.parent / "reports.json"
    done = ddp_template("fleet", "--json", file, *arguments, code=None)
    reports = {Path(report["project"]).name: report for report in json.loads(file.read_text())}
    return done.exit_code, done.output, reports


def test_each_project_is_told_of_and_none_is_touched(projects: Path) -> None:
    before = everything(projects)
    names = [*(path.name for path in projects.iterdir() if path.name != "monorepo"), "monorepo/training", "nowhere"]
    code, printed, reports = fleet(projects, *(str(projects / name) for name in names))
    assert (everything(projects), code) == (before, 1)
    expected = {
        "edited": ("v1.0.0", "clean", ""),
        "conflicting": ("v1.0.0", "conflicts", ""),
        "dirty": ("v1.0.0", "clean", "what is not committed, which Copier wants to be, was left out"),
        "unknown": ("v1.0.0-3-gabcdef0", "impossible", "v1.0.0-3-gabcdef0 is no revision of this clone"),
        "without-git": ("?", "impossible", "git has no commit of it"),
        "no-answers": ("?", "impossible", "names no version"),
        "foreign": ("v1.0.0", "impossible", "this is a project of another template"),
        "odd-name-\udce9": ("v1.0.0", "clean", ""),
        "training": ("v1.0.0", "clean", ""),
        "no project": ("?", "impossible", f"there is no {ANSWERS_FILE}"),
        "nowhere": ("?", "impossible", "is no folder"),
    }
    assert reports.keys() == expected.keys()
    for name, (version, state, reason) in expected.items():
        assert (reports[name]["version"], reports[name]["state"]) == (version, state)
        assert reason in reports[name]["reason"]
        assert reports[name]["reason"] in printed
    assert reports["conflicting"]["conflicts"] == ["UPDATING.md"]
    # How many lines depends on what the template is now.
    assert any(re.fullmatch(r"M \+\d+ -\d+ ddp_project/config\.py", each) for each in reports["edited"]["changes"])
    assert any(re.fullmatch(r"A \+1 -0 ddp_project/runtime/sums\.py", each) for each in reports["training"]["changes"])
    assert f"{projects / 'edited'}: v1.0.0, clean\n" in printed


def test_drift_is_what_differs_from_the_recorded_version(history: History, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    copy_project(history.folder, "v1.0.0", {"launcher": "slurm"}, folder / "untouched")
    names = ("of-owner", "drifted", "not-committed", "no-version", "broken", "odd-key")
    for name in names:
        shutil.copytree(folder / "untouched", folder / name)
    append(folder / "of-owner" / "ddp_project" / "task.py", "# mine\n")
    new_option(folder / "of-owner")
    (folder / "of-owner" / "ddp_project" / "data.py").unlink()
    (folder / "of-owner" / "ddp_project" / "runtime" / "mine.py").touch()
    seeding = folder / "drifted" / "ddp_project" / "runtime" / "seeding.py"
    seeding.write_text("# one\n# two\n" + seeding.read_text().partition("\n")[2])
    (folder / "drifted" / "tests" / "test_exact.py").unlink()
    (folder / "drifted" / "launch.sh").chmod(0o644)
    replace(folder / "no-version" / ANSWERS_FILE, "_commit: v1.0.0\n", "")
    (folder / "broken" / ANSWERS_FILE).write_bytes(b"\xff{")
    append(folder / "odd-key" / ANSWERS_FILE, "1: x\n")
    for name in ("untouched", *names):
        put_under_git(folder / name)
    append(folder / "not-committed" / "launch.sh", "# now\n")
    _, printed, reports = fleet(tmp_path, "--drift", *(str(folder / name) for name in ("untouched", *names)))
    deleted = len((folder / "untouched" / "tests" / "test_exact.py").read_text().splitlines())
    drift = ["M +0 -0 launch.sh", f"D +0 -{deleted} tests/test_exact.py", "M +2 -1 ddp_project/runtime/seeding.py"]
    found = {name: report["drift"] for name, report in reports.items()}
    assert (found["untouched"], found["of-owner"], found["not-committed"]) == ([], [], ["M +1 -0 launch.sh"])
    assert sorted(found["drifted"]) == sorted(drift)
    assert (found["no-version"], found["broken"], found["odd-key"]) == (None, None, [])
    edits = {line.split(" ")[-1]: line for line in reports["of-owner"]["edits"]}
    assert edits.keys() == {f"ddp_project/{name}.py" for name in ("config", "data", "task")}
    assert edits["ddp_project/task.py"] == "M +1 -0 ddp_project/task.py"
    assert reports["untouched"]["edits"] == []
    lines = printed.splitlines()
    assert f"{folder / 'drifted'}: v1.0.0, clean, drift in 3 files" in lines
    assert {f"{folder / 'drifted'}: drift: {line}" for line in drift} <= {*lines}
    assert f"{folder / 'of-owner'}: edit: M +1 -0 ddp_project/task.py" in lines
    for name in ("no-version", "broken"):
        [_, why] = [line for line in lines if line.startswith(f"{folder / name}: ")]
        assert why.startswith(f"{folder / name}: {ANSWERS_FILE} names no version")


def test_projects_with_the_same_answers_share_a_render(history: History, tmp_path: Path) -> None:
    first = render_once(history, "v1.0.0", {"amp": "none", "task": "digits"}, tmp_path)
    written = everything(first)
    assert render_once(history, "v1.0.0", {"task": "digits", "amp": "none"}, tmp_path) == first
    assert everything(first) == written
    assert render_once(history, "v1.0.0", {"amp": "torch", "task": "digits"}, tmp_path) != first


def test_what_fleet_foretells_is_what_an_update_does(history: History, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    copy_project(history.folder, "v1.0.0", {}, folder)
    new_option(folder)
    put_under_git(folder)
    _, printed, reports = fleet(tmp_path, str(folder), "--changes")
    foretold = {line.split(" ")[-1] for line in reports["own"]["changes"]}
    copier = Path(sys.executable).parent / "copier"
    subprocess.run([copier, "update", "--defaults", "--quiet", "--vcs-ref", NEXT], cwd=folder, check=True)
    done = {line.split(" ")[-1] for line in run(folder, "status", "--porcelain").splitlines()} - {ANSWERS_FILE}
    assert foretold == done
    assert all(line in printed for line in reports["own"]["changes"])


def test_a_version_to_update_to_can_be_chosen(projects: Path) -> None:
    code, _, reports = fleet(projects, str(projects / "edited"), str(projects / "conflicting"), "--to", "1.0.0")
    assert (code, {report["state"] for report in reports.values()}) == (0, {"nothing to do"})


def test_projects_of_other_versions_than_released_ones_are_found(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("generator.cli.updates.examine_all", partial(examine_all, template=made_up.folder))
    made_up.replace("template/README.md.jinja", "## Start\n", "## Begin\n")
    commit_all(made_up.folder)
    copy_project(made_up.folder, "HEAD", {}, tmp_path / "project")
    put_under_git(tmp_path / "project")
    change_many_files(made_up)
    code, _, reports = fleet(tmp_path, str(tmp_path / "project"))
    assert reports["project"]["version"].startswith("v1.0.0-1-g")
    assert (code, reports["project"]["state"]) == (0, "clean")
