"""Projects of released versions are updated to the template as it is, and compared with fresh copies of it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.answers.combinations import text
from generator.render.project import recorded_answers
from generator.render.trees import read_files
from generator.update.ownership import read_ownership
from generator.update.replay import (
    UpdateError,
    commit_all,
    conflicts,
    copy_project,
    differing,
    fresh_copy,
    put_under_git,
    update,
    update_again,
)


@dataclass(frozen=True)
class Route:
    """The versions that a project goes through, by their tags: it is copied from the first."""

    stops: tuple[str, ...]

    @property
    def is_direct(self) -> bool:
        """Whether no other version lies between."""
        return len(self.stops) == 2

    def __str__(self) -> str:
        return " -> ".join(self.stops)


def carry(template: Path, route: Route, answers: Mapping[str, Any], folder: Path) -> list[str]:
    """Copy a project, which stays in folder/old, update it on its way in folder/new, and say what is wrong there."""
    old, new = folder / "old", folder / "new"
    copy_project(template, route.stops[0], answers, old)
    shutil.copytree(old, new)
    put_under_git(new)
    for version in route.stops[1:]:
        try:
            update(new, version)
        except UpdateError as error:
            return [f"the update to {version} is refused: {error}"]
        if left := conflicts(read_files(new)):
            return [f"the update to {version} leaves a conflict in {path}, which nobody has edited" for path in left]
        commit_all(new)
    return wrong_answers(old, new) + wrong_files(template, route.stops[-1], old, new) + update_again(new)


def wrong_answers(old: Path, new: Path) -> list[str]:
    """Say which answers to the same question the update has changed."""
    before, after = recorded_answers(old), recorded_answers(new)
    changed = [key for key in before if key in after and before[key] != after[key]]
    return [f"the answer {key}={text(before[key])} became {text(after[key])}" for key in changed]


def wrong_files(template: Path, version: str, old: Path, new: Path) -> list[str]:
    """Say where the project is not what a fresh copy with its answers is, the owner's files aside."""
    answers = recorded_answers(new)
    owned = read_ownership(template, answers["package_name"])
    before, after = read_files(old), read_files(new)
    fresh = fresh_copy(template, version, answers, new.parent / "fresh")
    # An update leaves the owner's files as they were, also those that are not the template's any more.
    expected = {path: file for path, file in fresh.items() if not owned.kept(path)}
    expected |= {path: file for path, file in before.items() if owned.kept(path)}
    return [f"after the update {words}" for words in differing(after, expected)]


def routes(releases: Sequence[str], newest: str) -> list[Route]:
    """Return the ways from every release to the newest version: at once, and through each release between them."""
    direct = [Route((release, newest)) for release in releases]
    stepwise = [Route((*releases[i:], newest)) for i in range(len(releases) - 1)]
    return direct + stepwise
