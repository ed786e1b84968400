"""A copy of the template's own files, outside git: quick to render from, and the same for every render."""

import io
import shutil
import tarfile
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.git import GitError, git

PARTS = ("copier.yml", "template", "partials")


def take_snapshot(folder: Path, template: Path = TEMPLATE) -> Path:
    """Copy what Copier reads into a new folder, and return that folder."""
    folder.mkdir(parents=True)
    for name in PARTS:
        copy = shutil.copytree if (template / name).is_dir() else shutil.copy2
        copy(template / name, folder / name)
    return folder


def snapshot_of_revision(folder: Path, revision: str, template: Path = TEMPLATE) -> Path:
    """Copy what Copier reads as it was in a revision of the template's repository, and return the new folder."""
    commit = find_commit(revision, template)
    there = git(template, "ls-tree", "--name-only", commit, "--", *PARTS).decode().split()
    if "copier.yml" not in there:
        raise GitError(f"there is no copier.yml in {revision}: choose a revision that has the template")
    packed = git(template, "archive", "--format=tar", commit, "--", *there)
    for name in PARTS[1:]:
        (folder / name).mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 brought it
        archive.extractall(folder)
    return folder


def find_commit(revision: str, template: Path = TEMPLATE) -> str:
    """Return the hash of a revision's commit. Raises GitError if there is no repository, or no such revision."""
    try:
        git(template, "rev-parse", "--git-dir")
    except GitError as error:
        if "not a git repository" not in str(error):
            raise
        raise GitError(f"{template} is in no git repository, so it has no revisions to compare with") from None
    try:
        return git(template, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except GitError:
        remedy = "give a commit, a branch or a tag (git fetch --unshallow gets what a shallow clone lacks)"
        raise GitError(f"{revision!r} is no revision that this clone has: {remedy}") from None
