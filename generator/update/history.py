"""The released versions, and a throwaway clone of the template's repository, in which every one of them has its tag.

Updates are tried in it: the tags of a checkout may be missing or wrong, and what is not committed yet has none.
"""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from generator.answers.questions import TEMPLATE
from generator.render.git import GitError, run
from generator.render.project import RenderError
from generator.render.snapshot import PARTS, find_commit, take_snapshot

FILE = "releases.yml"


@dataclass(frozen=True)
class Release:
    """One released version."""

    version: str  # PEP 440, without a v
    commit: str

    @property
    def tag(self) -> str:
        """The name that Copier knows it by."""
        return f"v{self.version}"


def read_releases(template: Path = TEMPLATE) -> list[Release]:
    """Return all released versions, the oldest first; none before the first release.

    Raises RenderError if the file is not there, or lists what is no version or in another order.
    """
    try:
        listed = yaml.compose((template / FILE).read_text())  # all of it is text: 1.10 is not 1.1
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RenderError(f"{FILE} cannot be read: {error}") from None
    if listed is None:
        return []
    if not isinstance(listed, yaml.MappingNode):
        raise RenderError(f"{FILE} has no line such as 1.0.0: COMMIT")
    releases = [Release(str(version.value), str(commit.value)) for version, commit in listed.value]
    versions = [parse_version(release.version) for release in releases]
    for before, after in itertools.pairwise(versions):
        if not before < after:
            raise RenderError(f"{FILE} lists {after} below {before}: each version is newer than the one above it")
    return releases


def parse_version(version: str) -> Version:
    """Read a version. Raises RenderError if it is none by PEP 440, which Copier would silently ignore."""
    try:
        return Version(version)
    except InvalidVersion:
        raise RenderError(f"{version} is no version by PEP 440: give one such as 1.2.0 or 1.2.0rc1") from None


NEXT = "v99999"  # the tag of the template as it is in the working tree: newer than all versions


@dataclass(frozen=True)
class History:
    """The throwaway clone, from which Copier copies and updates by tags."""

    folder: Path
    releases: Sequence[Release]
    template: Path  # what was cloned

    def find_version(self, revision: str) -> str:
        """Return the name by which Copier finds a release, which may be written without v, or another revision.

        Raises GitError if the template's repository has no such revision, or no template in it.
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

    Raises GitError if there is no repository, or if it lacks the commit of a release.
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
