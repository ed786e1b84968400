"""One project is copied, edited and updated, by Copier itself, as its owner would do it."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import copier
from copier.errors import CopierError

from generator.render.git import hermetic_git, run
from generator.render.project import NAME, RenderError
from generator.render.trees import Tree, read_files

MARKERS = (b"<<<<<<< ", b">>>>>>> ")


class UpdateError(RenderError):
    """Copier refuses an update. The message is one line that says why."""


def copy_project(template: Path, version: str, answers: Mapping[str, Any], project: Path) -> None:
    """Write a project from a version of the template. Raises RenderError if Copier refuses the answers."""
    with hermetic_git(project.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            copier.run_copy(
                str(template),
                project,
                data=NAME | dict(answers),
                defaults=True,
                quiet=True,
                vcs_ref=version,
                unsafe=False,
            )
        except (CopierError, ValueError) as error:
            raise RenderError(" ".join(str(error).split())) from error


def put_under_git(project: Path) -> None:
    """Make a project a repository of its own, with all that it holds in one commit."""
    run(project, "init", "--quiet")
    commit_all(project)


def commit_all(project: Path) -> None:
    """Commit all that the project holds, if anything is new."""
    run(project, "add", "--all")
    run(project, "commit", "--quiet", "--allow-empty", "--message", "All")


def update(
    project: Path, version: str | None = None, answers: Mapping[str, Any] | None = None, *, quiet: bool = True
) -> None:
    """Update a project to a version of its template, or the newest one, with its answers but for the given ones.

    Raises UpdateError if Copier refuses.
    """
    with hermetic_git(project.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            copier.run_update(
                project, data=dict(answers or {}), defaults=True, overwrite=True, quiet=quiet, vcs_ref=version
            )
        except Exception as error:  # git's, YAML's and Jinja's own errors, too
            raise UpdateError(" ".join(str(error).split()) or type(error).__name__) from error


def update_again(project: Path) -> list[str]:
    """Update a project that is up to date, and say what that changes."""
    before = read_files(project)
    update(project)
    return [f"a second update: {words}" for words in differing(read_files(project), before)]


def conflicts(tree: Tree) -> list[str]:
    """Name the files in which an update left a conflict, and the rejected edits that it left beside them."""
    return [
        path
        for path, (_, content) in tree.items()
        if path.endswith(".rej") or any(line.startswith(MARKERS) for line in content.splitlines())
    ]


def differing(one: Tree, other: Tree) -> list[str]:
    """Say which files two trees do not share, or not with the same bytes and mode."""
    words = []
    for path in sorted(one.keys() | other.keys()):
        if path not in one or path not in other:
            words.append(f"{path} {'is missing' if path not in one else 'is too many'}")
        elif one[path] != other[path]:
            words.append(f"{path} has another {'content' if one[path][1] != other[path][1] else 'mode'}")
    return words


def fresh_copy(template: Path, version: str, answers: Mapping[str, Any], place: Path) -> Tree:
    """Read what a copy of a version would be, which is gone then."""
    copy_project(template, version, answers, place)
    try:
        return read_files(place)
    finally:
        shutil.rmtree(place)


def is_text(content: bytes) -> bool:
    """Whether a file can be read by people, and merged by git."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
