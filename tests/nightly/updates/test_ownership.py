"""Whose a file is: the README's table is true, and what Copier would lose without a word is kept, or loud."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import copier
import pytest
from copier.errors import DirtyLocalWarning

from generator.answers.questions import SHARED, read_ownership
from generator.cli.render import record_origin
from generator.render.git import conflicts, run
from generator.render.project import ANSWERS_FILE, NAME, read_files, render
from generator.update import replay
from generator.update.history import NEXT
from generator.update.replay import commit_all, copy_project, put_under_git, update
from tests.conftest import Render
from tests.support.versions import MadeUp, replace
from tools.rewriting import Rewrite

OldProject = Callable[..., Path]
OWNERS_LINE = "# The owner's line.\n"
BATCH = "#SBATCH --nodes=1\n"

STEP = "ddp_project/runtime/optimizer_step.py"


def line_after(pattern: str) -> Callable[[Path], None]:
    return Rewrite(pattern, f"{{}}\n{OWNERS_LINE.rstrip()}").apply


def classes(project: Path) -> dict[str, str]:
    """Whose each file of a project is, by the table of its UPDATING.md."""
    _, _, section = (project / "UPDATING.md").read_text().partition("\n## Which files are yours\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    *rows, others = [line.strip("| ").split(" | ")[:2] for line in lines[2:]]
    assert others[0].startswith("all others")
    named = {path: whose for paths, whose in rows for path in re.findall("`(.+?)`", paths)}
    return {path: named.pop(path, others[1]) for path in read_files(project) if path != ANSWERS_FILE} | named


def test_the_table_of_updating_md_is_that_of_copier_yml(project: Render) -> None:
    told = classes(project())
    owned = read_ownership()
    assert set(told.values()) == {"yours", "shared", "the template's"}
    assert {path for path in told if owned.yours.match_file(path)} == {path for path in told if told[path] == "yours"}
    assert {path for path in told if told[path] == "shared"} == {path for path in told if SHARED.match_file(path)}


@pytest.fixture
def everything_changed(made_up: MadeUp) -> MadeUp:
    """A second version, 1.1.0, with another last line in each text file, whosever it is."""
    for file in (made_up.folder / "template").rglob("*"):
        if file.is_file() and replay.is_text(file.read_bytes()) and "answers_file" not in file.name:
            comment = "Last line." if ".md" in file.name else "# Last line."
            file.write_text(f"{file.read_text()}\n{comment}\n")
    made_up.release("1.1.0")
    return made_up


def test_an_update_does_to_each_file_what_the_table_says(everything_changed: MadeUp, tmp_path: Path) -> None:
    project = tmp_path / "project"
    copy_project(everything_changed.folder, "v1.0.0", {}, project)
    untouched = project.rename(tmp_path / "untouched")
    copy_project(everything_changed.folder, "v1.0.0", {}, project)
    told = classes(project)
    for path, whose in told.items():
        if whose != "the template's":
            (project / path).write_bytes(OWNERS_LINE.encode() + (project / path).read_bytes())
    for folder in (project, untouched):
        put_under_git(folder)
        before = read_files(folder)
        update(folder)
        after = read_files(folder)
        assert conflicts(after) == []
        for path, whose in told.items():
            if whose == "yours":
                assert after[path] == before[path]
            else:
                assert after[path][1].endswith(b"Last line.\n"), path
            if whose == "shared" and folder == project:
                assert after[path][1].startswith(OWNERS_LINE.encode()), path


@pytest.mark.parametrize(
    ("path", "before", "after", "edit"),
    [
        (STEP, "amp=torch", "none", line_after("super().load_state_dict(state_dict)")),
        (STEP, "amp=apex", "torch", line_after("from apex import amp")),
        ("ddp_project/runtime/tracking.py", "logging=wandb", "console", line_after("self.run = wandb.init($$$A)")),
        ("launch.sh", "launcher=slurm", "spawn", partial(replace, old=BATCH, new=BATCH + OWNERS_LINE)),
    ],
    ids=["torch.amp", "apex", "wandb", "slurm"],
)
def test_an_answer_that_replaces_an_edited_file_leaves_a_conflict(
    path: str, before: str, after: str, edit: Callable[[Path], None], old_project: OldProject
) -> None:
    question, _, answer = before.partition("=")
    project = old_project(NEXT, **{question: answer})
    edit(project / path)
    commit_all(project)
    update(project, NEXT, {question: after})
    assert conflicts(read_files(project)) == [path]
    assert OWNERS_LINE in (project / path).read_text()
    assert f"UU {path}" in run(project, "status", "--porcelain")


def test_what_the_owner_deletes_stays_deleted_and_what_both_add_is_a_conflict(old_project: OldProject) -> None:
    project, new = old_project(), "ddp_project/runtime/sums.py"
    deleted = [f"ddp_project/{name}" for name in ("model.py", "data.py", "digits.npz")]
    deleted += ["tests/test_exact.py", "README.md"]
    for path in deleted:
        (project / path).unlink()
    (project / new).write_text("# mine\n")
    commit_all(project)
    update(project, NEXT)
    assert [path for path in deleted if (project / path).exists()] == []
    assert conflicts(read_files(project)) == [new]
    assert "# mine\n" in (project / new).read_text()


def test_a_copy_of_uncommitted_changes_says_so_and_loses_nothing(made_up: MadeUp, tmp_path: Path) -> None:
    made_up.replace("template/README.md.jinja", "## Start\n", "## Begin\n")
    project = tmp_path / "project"
    with pytest.warns(DirtyLocalWarning):
        copier.run_copy(str(made_up.folder), project, data=NAME, defaults=True, quiet=True, vcs_ref="HEAD")
    put_under_git(project)
    made_up.release("1.1.0")
    before = read_files(project)
    with pytest.raises(replay.UpdateError):
        update(project)
    assert replay.differing(read_files(project), before) == []
    # What docs/updates.md says to do.
    answers = (project / ANSWERS_FILE).read_text()
    (project / ANSWERS_FILE).write_text(re.sub("^_commit: .*", "_commit: v1.0.0", answers, flags=re.MULTILINE))
    commit_all(project)
    update(project)
    assert conflicts(read_files(project)) == []
    assert (project / "README.md").read_text().count("## Begin\n") == 1


def test_a_project_of_this_clone_with_changes_is_recorded_as_its_last_commit(made_up: MadeUp, tmp_path: Path) -> None:
    commit_all(made_up.folder)
    made_up.replace("template/README.md.jinja", "## Start\n", "## Begin\n")
    project = tmp_path / "project"
    render(project, {}, template=made_up.folder)
    assert "copier update will take these changes for yours" in record_origin(project, made_up.folder)
    put_under_git(project)
    made_up.replace("template/README.md.jinja", "## What a run writes\n", "## Files of a run\n")
    made_up.release("1.1.0")
    update(project)
    assert conflicts(read_files(project)) == []
    readme = (project / "README.md").read_text()
    assert (readme.count("## Begin\n"), readme.count("## Files of a run\n")) == (1, 1)
