"""The released versions, a throwaway clone that has the tag of each, and the conditions for the next release.

Updates run in the clone, since a checkout may lack tags or have wrong ones, and uncommitted changes have none.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from generator.answers.questions import TEMPLATE
from generator.render.git import GitError, run
from generator.render.project import RenderError
from generator.render.snapshot import PARTS, find_commit, take_snapshot

FILE, CHANGES, METADATA = "releases.yml", "CHANGELOG.md", "pyproject.toml"
# What the changelog of a version tells people who update to it.
TOLD = ("### What changes in your project", "### What you must do")
# The files of a version's tag: those that Copier reads, and two that users may look for.
RELEASED = (*PARTS, CHANGES, "LICENSE")
NEXT = "v99999"  # the tag of the template as it is in the working tree: newer than all versions


@dataclass(frozen=True)
class Release:
    version: str  # PEP 440, without a v
    commit: str

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def read_releases(template: Path = TEMPLATE) -> list[Release]:
    """Return all released versions, the oldest first; none before the first release."""
    try:
        listed = yaml.compose((template / FILE).read_text())  # all values stay text: 1.10 is not 1.1
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RenderError(f"{FILE} cannot be read: {error}") from None
    if listed is None:
        return []
    if not isinstance(listed, yaml.MappingNode):
        raise RenderError(f"{FILE} has no line such as 1.0.0: COMMIT")
    releases = [Release(str(version.value), str(commit.value)) for version, commit in listed.value]
    for before, after in itertools.pairwise([parse_version(release.version) for release in releases]):
        if not before < after:
            raise RenderError(f"{FILE} lists {after} below {before}: each version is newer than the one above it")
    return releases


def parse_version(version: str) -> Version:
    """Read a version. Raises RenderError if it violates PEP 440: Copier would silently ignore it."""
    try:
        return Version(version)
    except InvalidVersion:
        raise RenderError(f"{version} is no version by PEP 440: give one such as 1.2.0 or 1.2.0rc1") from None


@dataclass(frozen=True)
class History:
    """The throwaway clone from which Copier copies and updates by tags."""

    folder: Path
    releases: Sequence[Release]
    template: Path  # what was cloned

    def find_version(self, revision: str) -> str:
        """Return the name by which Copier finds a revision, or a release with or without v."""
        for release in self.releases:
            if revision in (release.version, release.tag):
                return release.tag
        commit = find_commit(revision, self.template)
        try:
            run(self.template, "cat-file", "-e", f"{commit}:copier.yml")
        except GitError:
            raise GitError(f"there is no copier.yml in {revision}: choose a revision that has the template") from None
        run(self.folder, "update-ref", f"refs/heads/wanted/{commit}", commit)  # so that Copier's clones have it
        return commit


def clone_history(folder: Path, releases: Sequence[Release], template: Path = TEMPLATE) -> History:
    """Clone the template's repository, tag its releases, and add the working tree as the newest version."""
    find_commit("HEAD", template)
    run(template, "clone", "--quiet", "--shared", "--no-tags", "--template=", str(template), str(folder))
    for release in releases:
        try:
            run(folder, "cat-file", "-e", f"{release.commit}^{{commit}}")
        except GitError:
            lacking = f"this clone lacks {release.commit}, the commit of version {release.version}"
            raise GitError(f"{lacking}: git fetch --unshallow gets it") from None
        run(folder, "tag", "--force", release.tag, release.commit)
    run(folder, "rm", "-r", "--quiet", "--ignore-unmatch", "--", *PARTS)
    snapshot = take_snapshot(folder / ".git" / "snapshot", template)
    run(snapshot, f"--git-dir={snapshot.parent}", "--work-tree=.", "add", "--all", "--force", *PARTS)
    run(folder, "commit", "--quiet", "--allow-empty", "--message", "The working tree")
    run(folder, "tag", NEXT)
    run(folder, "reset", "--quiet", "--hard")
    return History(folder, releases, template)


def check_release(version: str, template: Path = TEMPLATE) -> None:
    """Check everything about a release except its updates. Raises RenderError, which says what to do."""
    releases, parsed = read_releases(template), parse_version(version)
    if str(parsed) != version:
        raise RenderError(f"{version} is written {parsed}: without v, and in the usual form of PEP 440")
    if releases and parsed <= parse_version(releases[-1].version):
        raise RenderError(f"{version} is not newer than {releases[-1].version}, the last line of {FILE}")
    check_changes(version, (template / CHANGES).read_text())
    check_metadata(version, template)
    # Ignored files would be in the trial, but not in the release.
    changed = run(template, "status", "--porcelain", "--untracked-files=all")
    ignored = run(template, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", *PARTS)
    if changed or ignored:
        first = (changed or ignored).splitlines()[0]
        raise RenderError(f"there are changes that are not committed ({first}): a version is a commit")
    listed = {release.tag: release.commit for release in releases}
    for tag in run(template, "tag", "--list", "v*").split():
        commit = run(template, "rev-parse", f"{tag}^{{commit}}")
        if tag not in listed:
            raise RenderError(f"the tag {tag} has no line in {FILE}: add '{tag[1:]}: {commit}', or delete the tag")
        if commit != listed[tag]:
            raise RenderError(f"the tag {tag} has moved: it is at {commit}, and {FILE} says {listed[tag]}")


def check_changes(version: str, changes: str) -> None:
    section = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", changes, flags=re.MULTILINE | re.DOTALL)
    if not section:
        raise RenderError(f"{CHANGES} has no section '## {version}': tell there what an update to it changes")
    for heading in TOLD:
        if not re.search(rf"^{re.escape(heading)}\n+(?!#)\S", section[1], flags=re.MULTILINE):
            raise RenderError(f"the section '## {version}' of {CHANGES} says nothing under '{heading}'")


def check_metadata(version: str, template: Path) -> None:
    if f'\nversion = "{version}"\n' not in (template / METADATA).read_text():
        raise RenderError(f"{METADATA} has another version: write {version} there, and commit it")


def tells_of_checkpoints(template: Path, since: str) -> bool:
    """Return whether the changelog since a version's tag says what to do about checkpoints."""
    file = template / CHANGES
    text = file.read_text() if file.exists() else ""
    newer = re.split(rf"^## {re.escape(since.removeprefix('v'))}$", text, flags=re.MULTILINE)[0]
    sections = re.split(r"^## ", newer, flags=re.MULTILINE)[1:]
    return any("checkpoint" in section.partition(TOLD[1])[2] for section in sections)


def steps_of_release(version: str, commit: str) -> list[str]:
    """Return the commands that release a commit; its tag has the template alone (docs/decisions/0026)."""
    return [
        f"tree=$(git ls-tree {commit} {' '.join(RELEASED)} | git mktree)",
        f'released=$(git commit-tree -p {commit} -m "{version}: the template alone" "$tree")',
        f'git tag --annotate v{version} --message "{version}" "$released"',
        'git merge --no-ff --no-commit --strategy ours "$released"',
        f'echo "{version}: $released" >>{FILE}',
        f"git add {FILE}",
        f'git commit --message "Release {version}"',
        f"git push origin HEAD v{version}",
    ]
