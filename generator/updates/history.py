"""A throwaway clone of the template's repository, in which every released version has its tag.

Updates are tried in it: the tags of a checkout may be missing or wrong, and what is not committed yet has none.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..git import GitError
from ..questions import TEMPLATE
from ..snapshot import PARTS, find_commit, take_snapshot
from .hermetic import run
from .releases import Release

NEXT = "v99999"  # the tag of the template as it is in the working tree: newer than all versions


@dataclass(frozen=True)
class History:
    """The throwaway clone, from which Copier copies and updates by tags."""

    folder: Path
    releases: Sequence[Release]
    template: Path  # what was cloned

    def find_version(self, revision: str) -> str:
        """Give the name by which Copier finds a release, which may be written without v, or another revision.

        Raises GitError where the template's repository has no such revision, or no template in it.
        """
        for release in self.releases:
            if revision in (release.version, release.tag):
                return release.tag
        commit = find_commit(revision, self.template)
        try:
            run(self.template, "cat-file", "-e", f"{commit}:copier.yml")
        except GitError:
            raise GitError(f"there is no copier.yml in {revision}: choose a revision that has the template") from None
        run(self.folder, "update-ref", f"refs/heads/wanted/{commit}", commit)  # Copier's clones have it, too
        return commit


def clone_history(folder: Path, releases: Sequence[Release], template: Path = TEMPLATE) -> History:
    """Clone the template's repository, tag its releases, and add its files as they are now as the newest version.

    Raises GitError where there is no repository, or where it lacks the commit of a release.
    """
    find_commit("HEAD", template)
    run(template, "clone", "--quiet", "--shared", "--no-tags", "--template=", str(template), str(folder))
    for release in releases:
        try:
            run(folder, "cat-file", "-e", f"{release.commit}^{{commit}}")
        except GitError:
            raise GitError(
                f"this clone lacks {release.commit}, the commit of version {release.version}: "
                "git fetch --unshallow gets it"
            ) from None
        run(folder, "tag", "--force", release.tag, release.commit)
    add_working_tree(folder, template)
    return History(folder, releases, template)


def add_working_tree(folder: Path, template: Path) -> None:
    """Commit and tag the template as it is now."""
    for part in PARTS:
        place = folder / part
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    snapshot = take_snapshot(folder / ".snapshot", template)
    for part in PARTS:
        (snapshot / part).rename(folder / part)
    snapshot.rmdir()
    run(folder, "add", "--all", "--force", *PARTS)
    run(folder, "commit", "--quiet", "--allow-empty", "--message", "The working tree")
    run(folder, "tag", NEXT)
