"""Looks at projects that exist: where they differ from what Copier wrote, and what an update would do to a copy."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from generator.answers.questions import SHARED, TEMPLATE, questions_in, read_ownership
from generator.diff.versions import Watch
from generator.render.git import GitError, compare_folders, conflicts, git, run
from generator.render.project import ANSWERS_FILE, RenderError, parse_answers, read_files
from generator.render.scratch import scratch_folder
from generator.render.workers import Workers
from generator.update.history import NEXT, History, clone_history, read_releases
from generator.update.replay import ROOM, Answers, commit_all, copy_project, move, update

# What an update would do, from the best to the worst.
NOTHING, CLEAN, CONFLICTS, IMPOSSIBLE = "nothing to do", "clean", "conflicts", "impossible"
RENDERS = "renders"  # the folder of what Copier writes for recorded versions and answers
PER_FILE = ("--no-renames", "--raw", "--numstat", "-z")  # options of git diff, for read_changes()


@dataclass
class Report:
    project: str
    version: str = "?"  # of the template, as Copier has recorded it
    state: str = IMPOSSIBLE
    reason: str = ""  # why it is impossible, or what else its owner must know
    conflicts: list[str] = field(default_factory=list)  # files
    changes: list[str] = field(default_factory=list)  # one for each file: A, M or D, lines that come and go, path
    # Files that differ from what the recorded version and answers write, in the same form; None if that is not known.
    drift: list[str] | None = None  # of the template
    edits: list[str] | None = None  # of the owner and shared: these are there to be edited


def examine_all(projects: Sequence[Path], to: str | None, watch: Watch, template: Path = TEMPLATE) -> list[Report]:
    """Examine projects, some at a time. Raises RenderError if the template has no such version."""
    with scratch_folder(ROOM) as folder, Workers() as workers:
        history = clone_history(folder / "history", read_releases(template), template)
        target = history.find_version(to) if to else NEXT
        (folder / RENDERS).mkdir()
        jobs = [workers.submit(examine, each, history, target, folder / str(i)) for i, each in enumerate(projects)]
        for _ in watch(as_completed(jobs), len(jobs)):
            pass
        return [job.result() for job in jobs]


def examine(project: Path, history: History, target: str, folder: Path) -> Report:
    """Update a copy of a project, which itself is only read, in a new folder that goes again, and say how that went."""
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
    copy = clone_project(project, folder)
    answers = parse_answers((copy / ANSWERS_FILE).read_bytes())
    if "_commit" not in answers:
        raise RenderError(f"{ANSWERS_FILE} names no version (_commit): Copier wrote one, and it was edited")
    report.version = str(answers["_commit"])
    base, own_answers = find_base(report.version, answers, history)
    find_drift(report, project, history, render_once(history, base, own_answers, folder.parent / RENDERS))
    if run(project, "--no-optional-locks", "status", "--porcelain", "--", "."):
        report.reason = "what is not committed, which Copier wants to be, was left out"
    # The copy takes its template from the throwaway clone.
    own = {**answers, "_commit": base, "_src_path": str(history.folder)}
    (copy / ANSWERS_FILE).write_text(yaml.safe_dump(own, allow_unicode=True))
    commit_all(copy)
    before = conflicts(read_files(copy))
    update(copy, target)
    report.conflicts = [path for path in conflicts(read_files(copy)) if path not in before]
    moved = None if report.conflicts else move(copy)
    if moved:
        told = ["`ddp-template migrate` must follow the update", *moved.left]
        report.reason = "; ".join(filter(None, [report.reason, *told]))
    report.changes = changes_in(copy)
    report.state = CONFLICTS if report.conflicts or (moved and moved.left) else CLEAN if report.changes else NOTHING


def clone_project(project: Path, folder: Path) -> Path:
    """Copy what a project has committed. Raises RenderError if it is no project, or under no git."""
    if not project.is_dir():
        raise RenderError(f"{project} is no folder")
    if not (project / ANSWERS_FILE).is_file():
        raise RenderError(f"there is no {ANSWERS_FILE}: this is no project of the template, or it has lost its answers")
    try:
        top = (project / run(project, "rev-parse", "--show-cdup")).resolve()
        run(project, "rev-parse", "--verify", "--quiet", "HEAD")
    except GitError:
        told = "git has no commit of it, and Copier updates only what git has: git init, add, commit"
        raise RenderError(told) from None
    # Only the last commit, and by no link: git would write the time into objects that it shares.
    run(folder.parent, "clone", "--quiet", "--depth", "1", "--no-tags", "--template=", top.as_uri(), str(folder))
    copy = folder / project.resolve().relative_to(top)
    if not (copy / ANSWERS_FILE).exists():
        raise RenderError(f"{ANSWERS_FILE} is not committed")
    return copy


def find_base(version: str, answers: Answers, history: History) -> tuple[str, Answers]:
    """Return the name that the throwaway clone knows a recorded version by, and the answers to its questions."""
    try:
        base = history.find_version(version)
    except GitError:
        newest = history.releases[-1].tag if history.releases else "a version"
        missing = f"{version} is no revision of this clone. Either its tag is missing here: git fetch --tags. Or the"
        uncommitted = "project was made from what nobody has committed: write the nearest version, such as"
        raise RenderError(f"{missing} {uncommitted} _commit: {newest}, into {ANSWERS_FILE}") from None
    keys = [question.key for question in questions_in(run(history.folder, "show", f"{base}:copier.yml"))]
    for key in keys:
        if key not in answers:
            raise RenderError(f"{ANSWERS_FILE} has no answer to {key}: this is a project of another template")
    return base, {key: answers[key] for key in keys}


def render_once(history: History, base: str, answers: Answers, renders: Path) -> Path:
    """Return a folder with what a version writes for these answers. The first project that needs it renders it."""
    render = renders / hashlib.sha256(repr((base, sorted(answers.items()))).encode()).hexdigest()
    with render.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not render.exists():
            copy_project(history.folder, base, answers, render.with_suffix(".new"))
            render.with_suffix(".new").rename(render)
    return render


def find_drift(report: Report, project: Path, history: History, render: Path) -> None:
    """Compare each file of a render with the one in the project's folder, committed or not."""
    with tempfile.TemporaryDirectory(dir=render.parent) as place:
        for path in read_files(render):
            if (project / path).is_file():
                (Path(place) / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(project / path, Path(place) / path)
        changes = read_changes(compare_folders(render, Path(place), *PER_FILE))
    owned = read_ownership(history.folder)
    report.drift, report.edits = [], []
    for path, change in changes.items():
        is_edited = owned.yours.match_file(path) or SHARED.match_file(path)
        (report.edits if is_edited else report.drift).append(change)


def changes_in(copy: Path) -> list[str]:
    run(copy, "add", "--all")  # this takes its conflicts for solved; it is a copy
    return [*read_changes(git(copy, "diff", "--cached", "--relative", *PER_FILE).decode(errors="replace")).values()]


def read_changes(diff: str) -> dict[str, str]:
    """Return a line for each file of a diff, without the file of answers, by its path."""
    *entries, _ = diff.split("\0")
    # For each file two entries, of which the first ends with A, M or D, and the second is its path; then all counts.
    files = len(entries) // 3
    rows = [(entries[2 * i][-1], *entries[2 * files + i].split("\t", 2)) for i in range(files)]
    return {path: f"{kind} +{came} -{went} {path}" for kind, came, went, path in rows if path != ANSWERS_FILE}
