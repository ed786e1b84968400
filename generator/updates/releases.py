"""The released versions of the template."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from ..questions import TEMPLATE
from ..rendering import RenderError

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

    Raises RenderError where the file is not there, or lists what is no version or in another order.
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
    """Read a version. Raises RenderError where it is none by PEP 440, which Copier would silently ignore."""
    try:
        return Version(version)
    except InvalidVersion:
        raise RenderError(f"{version} is no version by PEP 440: give one such as 1.2.0 or 1.2.0rc1") from None
