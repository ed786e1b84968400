"""What must hold before a version of the template is released."""

import re
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.git import run
from generator.render.project import RenderError
from generator.render.snapshot import PARTS
from generator.update.history import FILE, Release, parse_version, read_releases

CHANGES = "CHANGELOG.md"
METADATA = "pyproject.toml"
# What a version tells the people who update to it.
TOLD = ("### What changes in your project", "### What you must do")


def check_release(version: str, template: Path = TEMPLATE) -> None:
    """Look at all that can be wrong with a release but its updates. Raises RenderError, which says what to do."""
    releases = read_releases(template)
    check_version(version, releases)
    check_changes(version, (template / CHANGES).read_text())
    check_metadata(version, template)
    # What git ignores would be tried with the others, and not be released.
    changed = run(template, "status", "--porcelain", "--untracked-files=all")
    ignored = run(template, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", *PARTS)
    if changed or ignored:
        first = (changed or ignored).splitlines()[0]
        raise RenderError(f"there are changes that are not committed ({first}): a version is a commit")
    check_tags(releases, template)


def check_version(version: str, releases: list[Release]) -> None:
    """Raise RenderError unless this is the name of a version that is newer than all others."""
    parsed = parse_version(version)
    if str(parsed) != version:
        raise RenderError(f"{version} is written {parsed}: without v, and in the usual form of PEP 440")
    if releases and parsed <= parse_version(releases[-1].version):
        raise RenderError(f"{version} is not newer than {releases[-1].version}, the last line of {FILE}")


def check_changes(version: str, changes: str) -> None:
    """Raise RenderError unless the changes of a version are told to those who update."""
    section = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", changes, flags=re.MULTILINE | re.DOTALL)
    if not section:
        raise RenderError(f"{CHANGES} has no section '## {version}': tell there what an update to it changes")
    for heading in TOLD:
        told = re.search(rf"^{re.escape(heading)}\n+(?!#)\S", section[1], flags=re.MULTILINE)
        if not told:
            raise RenderError(f"the section '## {version}' of {CHANGES} says nothing under '{heading}'")


def check_metadata(version: str, template: Path) -> None:
    """Raise RenderError unless this is the version of the template's own package."""
    if f'\nversion = "{version}"\n' not in (template / METADATA).read_text():
        raise RenderError(f"{METADATA} has another version: write {version} there, and commit it")


def tells_of_checkpoints(template: Path, since: str) -> bool:
    """Whether the changes since a version's tag say what must be done about checkpoints."""
    file = template / CHANGES
    text = file.read_text() if file.exists() else ""
    newer = re.split(rf"^## {re.escape(since.removeprefix('v'))}$", text, flags=re.MULTILINE)[0]
    sections = re.split(r"^## ", newer, flags=re.MULTILINE)[1:]
    return any("checkpoint" in section.partition(TOLD[1])[2] for section in sections)


def check_tags(releases: list[Release], template: Path) -> None:
    """Raise RenderError where a tag of this clone is not at the commit of its version, or a version has no line."""
    listed = {release.tag: release.commit for release in releases}
    for tag in run(template, "tag", "--list", "v*").split():
        commit = run(template, "rev-parse", f"{tag}^{{commit}}")
        if tag not in listed:
            raise RenderError(f"the tag {tag} has no line in {FILE}: add '{tag[1:]}: {commit}', or delete the tag")
        if commit != listed[tag]:
            raise RenderError(f"the tag {tag} has moved: it is at {commit}, and {FILE} says {listed[tag]}")


def steps_of_release(version: str, commit: str) -> list[str]:
    """Return the commands that release a commit that has passed all checks."""
    return [
        f'git tag --annotate v{version} --message "{version}" {commit}',
        f"echo '{version}: {commit}' >>{FILE}",
        f'git commit --message "Release {version}" {FILE}',
        f"git push origin HEAD v{version}",
    ]
