"""Looks at projects that exist: what an update would do to each of them, tried in a copy."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ..git import GitError, git
from ..rendering import ANSWERS_FILE, RenderError, name_source
from .hermetic import SETTINGS
from .history import History
from .replay import commit_all, conflicts, read_files, update

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
    """Update a copy of a project in a new folder, and say what became of it. The project itself is only read."""
    report = Report(str(project))
    project = project.absolute()
    try:
        report.version = recorded_version(project)
        base = find_base(report.version, history)
        copy = clone_project(project, folder)
        mend_answers(copy, history.folder, base)
        if git(project, "--no-optional-locks", "status", "--porcelain", "--", ".", environment=SETTINGS):
            report.reason = "what is not committed, which Copier wants to be, was left out"
        before = conflicts(read_files(copy))
        update(copy, target)
    except (RenderError, OSError) as error:
        report.reason = " ".join(str(error).split())
        return report
    report.conflicts = [path for path in conflicts(read_files(copy)) if path not in before]
    report.changes = changes_in(copy)
    report.state = CONFLICTS if report.conflicts else CLEAN if report.changes else NOTHING
    return report


def recorded_version(project: Path) -> str:
    """Give the version that a project has recorded. Raises RenderError where it is none of the template's."""
    if not project.is_dir():
        raise RenderError(f"{project} is no folder")
    file = project / ANSWERS_FILE
    if not file.is_file():
        raise RenderError(f"there is no {ANSWERS_FILE}: this is no project of the template, or it has lost its answers")
    try:
        answers = yaml.safe_load(file.read_text())
        return str(answers["_commit"])
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
        raise RenderError(f"{ANSWERS_FILE} names no version (_commit): Copier wrote one, and it was edited") from None


def find_base(version: str, history: History) -> str:
    """Give the name that the throwaway clone knows a recorded version by. Raises RenderError where it has none."""
    try:
        return history.tag_revision(version)
    except GitError:
        newest = history.releases[-1].tag if history.releases else "a version"
        raise RenderError(
            f"{version} is no revision of this clone: the project was made from changes that were not committed, or "
            f"from another clone. Write the version that is nearest, such as _commit: {newest}, into {ANSWERS_FILE}"
        ) from None


def clone_project(project: Path, folder: Path) -> Path:
    """Copy what a project has committed. Raises RenderError where it is under no git."""
    try:
        top = Path(git(project, "rev-parse", "--show-toplevel", environment=SETTINGS).decode().rstrip("\n"))
        within = project.resolve().relative_to(top.resolve())
        git(project, "rev-parse", "--verify", "--quiet", "HEAD", environment=SETTINGS)
    except GitError:
        raise RenderError(
            "git has no commit of it, and Copier updates only what git has: git init, add, commit"
        ) from None
    # Only the last commit, and by no link: git would write the time into objects that it shares.
    options = ("--quiet", "--depth", "1", "--no-tags", "--template=")
    git(folder.parent, "clone", *options, top.resolve().as_uri(), str(folder), environment=SETTINGS)
    copy = folder / within
    if not (copy / ANSWERS_FILE).exists():
        raise RenderError(f"{ANSWERS_FILE} is not committed")
    return copy


def mend_answers(copy: Path, template: Path, base: str) -> None:
    """Let the copy take its template from the throwaway clone."""
    name_source(copy, str(template))
    answers = (copy / ANSWERS_FILE).read_text().splitlines(keepends=True)
    lines = [f"_commit: {base}\n" if line.startswith("_commit:") else line for line in answers]
    (copy / ANSWERS_FILE).write_text("".join(lines))
    commit_all(copy)


def changes_in(copy: Path) -> list[str]:
    """Say what an update has changed, a line for each file, but for the answers file."""
    # This takes its conflicts for solved; it is a copy.
    git(copy, "add", "--all", environment=SETTINGS)
    options = ("diff", "--cached", "--no-renames", "--relative")
    shown = git(copy, *options, "--numstat", "-z", environment=SETTINGS).decode(errors="replace")
    kinds = git(copy, *options, "--name-status", "-z", environment=SETTINGS).decode(errors="replace").split("\0")
    kind_of = dict(zip(kinds[1::2], kinds[0::2], strict=False))
    rows = (row.split("\t", 2) for row in shown.split("\0") if row)
    return [f"{kind_of[path]} +{came} -{went} {path}" for came, went, path in rows if path != ANSWERS_FILE]
