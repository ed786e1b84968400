"""Looks at projects that exist: what an update would do to each of them, tried in a copy."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from generator.answers.questions import questions_in
from generator.render.git import SETTINGS, GitError, git, run
from generator.render.project import ANSWERS_FILE, RenderError
from generator.render.trees import read_files
from generator.update.history import History
from generator.update.replay import commit_all, conflicts, update

# What an update would do, from the best to the worst.
NOTHING, CLEAN, CONFLICTS, IMPOSSIBLE = "nothing to do", "clean", "conflicts", "impossible"


@dataclass
class Report:
    """What was found out about one project."""

    project: str
    version: str = "?"  # of the template, as Copier has recorded it
    state: str = IMPOSSIBLE
    reason: str = ""  # why it is impossible, or what else its owner must know
    conflicts: list[str] = field(default_factory=list)  # files
    changes: list[str] = field(default_factory=list)  # one for each file: A, M or D, lines that come and go, path


def examine(project: Path, history: History, target: str, folder: Path) -> Report:
    """Update a copy of a project in a new folder, which goes again, and say what became of it.

    The project itself is only read.
    """
    report = Report(str(project))
    try:
        try_update(report, project.absolute(), history, target, folder)
    except (RenderError, OSError, UnicodeDecodeError) as error:
        report.state, report.reason = IMPOSSIBLE, " ".join(str(error).split())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def try_update(report: Report, project: Path, history: History, target: str, folder: Path) -> None:
    """Update a copy, and complete the report. Raises RenderError if that is impossible."""
    if not project.is_dir():
        raise RenderError(f"{project} is no folder")
    if not (project / ANSWERS_FILE).is_file():
        raise RenderError(f"there is no {ANSWERS_FILE}: this is no project of the template, or it has lost its answers")
    copy = clone_project(project, folder)
    answers = read_answers(copy)
    report.version = str(answers["_commit"])
    base = find_base(report.version, history)
    refuse_other_templates(answers, base, history)
    if run(project, "--no-optional-locks", "status", "--porcelain", "--", "."):
        report.reason = "what is not committed, which Copier wants to be, was left out"
    # The copy takes its template from the throwaway clone.
    own = {**answers, "_commit": base, "_src_path": str(history.folder)}
    (copy / ANSWERS_FILE).write_text(yaml.safe_dump(own, allow_unicode=True))
    commit_all(copy)
    before = conflicts(read_files(copy))
    update(copy, target)
    report.conflicts = [path for path in conflicts(read_files(copy)) if path not in before]
    report.changes = changes_in(copy)
    report.state = CONFLICTS if report.conflicts else CLEAN if report.changes else NOTHING


def clone_project(project: Path, folder: Path) -> Path:
    """Copy what a project has committed. Raises RenderError if it is under no git."""
    try:
        shown = git(project, "rev-parse", "--show-toplevel", environment=SETTINGS)
        run(project, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        raise RenderError(
            "git has no commit of it, and Copier updates only what git has: git init, add, commit"
        ) from None
    top = Path(os.fsdecode(shown.removesuffix(b"\n"))).resolve()
    # Only the last commit, and by no link: git would write the time into objects that it shares.
    options = ("--quiet", "--depth", "1", "--no-tags", "--template=")
    run(folder.parent, "clone", *options, top.as_uri(), str(folder))
    copy = folder / project.resolve().relative_to(top)
    if not (copy / ANSWERS_FILE).exists():
        raise RenderError(f"{ANSWERS_FILE} is not committed")
    return copy


def read_answers(project: Path) -> dict[str, Any]:
    """Return what a project has recorded. Raises RenderError if there is no version of a template in it."""
    try:
        answers = yaml.safe_load((project / ANSWERS_FILE).read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        answers = None
    if not isinstance(answers, dict) or "_commit" not in answers:
        raise RenderError(f"{ANSWERS_FILE} names no version (_commit): Copier wrote one, and it was edited")
    return answers


def find_base(version: str, history: History) -> str:
    """Return the name that the throwaway clone knows a recorded version by. Raises RenderError if it has none."""
    try:
        return history.find_version(version)
    except GitError:
        newest = history.releases[-1].tag if history.releases else "a version"
        raise RenderError(
            f"{version} is no revision of this clone. Either its tag is missing here: git fetch --tags. Or the project "
            "was made from what nobody has committed: write the nearest version, such as "
            f"_commit: {newest}, into {ANSWERS_FILE}"
        ) from None


def refuse_other_templates(answers: dict[str, Any], base: str, history: History) -> None:
    """Raise RenderError where the answers are not those to the questions of a version of this template."""
    asked = questions_in(run(history.folder, "show", f"{base}:copier.yml"))
    if missing := [question.key for question in asked if question.key not in answers]:
        raise RenderError(f"{ANSWERS_FILE} has no answer to {missing[0]}: this is a project of another template")


def changes_in(copy: Path) -> list[str]:
    """Say what an update has changed, a line for each file, but for the answers file."""
    # This takes its conflicts for solved; it is a copy.
    run(copy, "add", "--all")
    options = ("diff", "--cached", "--no-renames", "--relative")
    shown = git(copy, *options, "--numstat", "-z", environment=SETTINGS).decode(errors="replace")
    kinds = git(copy, *options, "--name-status", "-z", environment=SETTINGS).decode(errors="replace").split("\0")
    kind_of = dict(zip(kinds[1::2], kinds[0::2], strict=False))
    rows = (row.split("\t", 2) for row in shown.split("\0") if row)
    return [f"{kind_of[path]} +{came} -{went} {path}" for came, went, path in rows if path != ANSWERS_FILE]
