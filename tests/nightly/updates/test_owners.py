"""Typical edits of owners: to edit and to update gives what to copy the new version and to edit it gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generator.answers.questions import read_ownership
from generator.render.project import read_files
from generator.update.history import NEXT, History
from generator.update.replay import commit_all, copy_project, differing, update
from tests.support.projects.edits import EDITS
from tests.support.training import checkpoint, train

OldProject = Callable[..., Path]


def edited(project: Path, *names: str) -> Path:
    for name in names:
        EDITS[name](project)
    commit_all(project)
    return project


@pytest.mark.parametrize("names", [*((name,) for name in EDITS), tuple(EDITS)], ids=[*EDITS, "all of them"])
def test_an_update_and_an_edit_commute(names: Any, old_project: OldProject, history: History, tmp_path: Path) -> None:
    project = edited(old_project(), *names)
    before = read_files(project)
    update(project, NEXT)
    copy_project(history.folder, NEXT, {}, tmp_path / "fresh")
    for name in names:
        EDITS[name](tmp_path / "fresh")
    kept = read_ownership(history.folder).kept
    expected = read_files(tmp_path / "fresh") | {path: file for path, file in before.items() if kept(path)}
    if "renamed_readme" in names:  # what the owner has renamed is the owner's
        expected["docs/training.md"] = read_files(project)["docs/training.md"]
    assert differing(read_files(project), expected) == []


@pytest.mark.parametrize("answers", [{"logging": "csv"}, {"launcher": "spawn"}, {"amp": "torch", "backend": "gloo"}])
def test_edits_and_another_answer_meet_in_no_conflict(
    answers: dict[str, str], old_project: OldProject, history: History, tmp_path: Path
) -> None:
    left_out = {"renamed_readme", *(["averaged_weights"] if "amp" in answers else [])}
    names = [name for name in EDITS if name not in left_out]
    project = edited(old_project(NEXT), *names)
    update(project, NEXT, answers)
    copy_project(history.folder, NEXT, answers, tmp_path / "fresh")
    for name in names:
        EDITS[name](tmp_path / "fresh")
    assert differing(read_files(project), read_files(tmp_path / "fresh")) == []


def test_an_edited_project_trains_and_goes_on_over_the_update(old_project: OldProject, tmp_path: Path) -> None:
    project = edited(old_project(), *EDITS)
    train(project, tmp_path / "run", "--max-steps", "3", "--label-smoothing", "0.1")
    update(project, NEXT)
    train(project, tmp_path / "run", "--max-steps", "9", "--label-smoothing", "0.1", "--resume")
    left = checkpoint(tmp_path / "run")
    assert left["progress"]["step"] == 9
    assert {"optimizer", "average"} <= left.keys()
    assert "epoch/validation_error" in (tmp_path / "run" / "train.log").read_text()
