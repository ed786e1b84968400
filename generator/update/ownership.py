"""Whose the files of a project are, as copier.yml says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from pathspec import GitIgnoreSpec

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE

# The one answer that an update refuses to change: the owner's files are in its folder.
KEPT_ANSWER = "package_name"


@dataclass(frozen=True)
class Ownership:
    """The files of a project that an update does not treat as the template's."""

    yours: GitIgnoreSpec  # written by a copy alone
    dropped: GitIgnoreSpec  # that only earlier versions wrote

    def kept(self, path: str) -> bool:
        """Whether an update leaves the file as it is."""
        return self.yours.match_file(path) or self.dropped.match_file(path)


def read_ownership(template: Path = TEMPLATE, package_name: str = "ddp_project") -> Ownership:
    """Read it from the settings of a version of the template, for projects of that package name."""
    settings = yaml.safe_load((template / "copier.yml").read_text())
    on_update, on_copy = (patterns_of(settings, "_exclude", package_name, how) for how in ("update", "copy"))
    skipped = patterns_of(settings, "_skip_if_exists", package_name, "update")
    yours = [pattern for pattern in on_update if pattern not in on_copy]
    return Ownership(GitIgnoreSpec.from_lines([*yours, *skipped]), GitIgnoreSpec.from_lines(on_copy))


def patterns_of(settings: Mapping[str, Any], key: str, package_name: str, operation: str) -> list[str]:
    """Return the patterns of a list of Copier's settings, as they are for an operation of Copier."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    names = {"package_name": package_name, "_copier_operation": operation}
    rendered = (environment.from_string(pattern).render(names) for pattern in settings.get(key, []))
    return [pattern for pattern in rendered if pattern]


def conditional_files(paths: Mapping[Combination, frozenset[str]]) -> list[str]:
    """Say which files only some answers give: others would delete them, with the owner's edits in them."""
    some = frozenset().union(*paths.values())
    words = []
    for path in sorted(path for path in some if not all(path in its for its in paths.values())):
        without = next(combination for combination, its in paths.items() if path not in its)
        words.append(
            f"{path} is not written for {without.name}: an update to these answers would delete an owner's edits"
        )
    return words


def lost_files(old: Iterable[str], before: Ownership, new: frozenset[str], now: Ownership) -> list[str]:
    """Say which files of an older version's project an update would delete or begin to touch."""
    words = []
    for path in sorted(old):
        if path not in new and not now.kept(path):
            words.append(
                f"{path} is not written any more, and an update would delete it with its owner's edits: "
                "name it in _exclude"
            )
        elif before.yours.match_file(path) and not now.kept(path):
            words.append(f"{path} was the owner's, and is not any more")
    return words
