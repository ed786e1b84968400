"""What a new version must leave to owners: the files that are theirs by copier.yml, and all that they answered."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2
import yaml
from pathspec import GitIgnoreSpec

from generator.answers.combinations import Combination, text
from generator.answers.questions import TEMPLATE, read_questions

# The one answer that an update refuses to change: the owner's files are in its folder.
KEPT_ANSWER = "package_name"


@dataclass(frozen=True)
class Ownership:
    """The files of a project that an update does not treat as the template's."""

    yours: GitIgnoreSpec  # written by a copy alone
    dropped: GitIgnoreSpec  # that only earlier versions wrote

    def kept(self, path: str) -> bool:
        """Return whether an update leaves the file as it is."""
        return self.yours.match_file(path) or self.dropped.match_file(path)


def read_ownership(template: Path = TEMPLATE, package_name: str = "ddp_project") -> Ownership:
    """Read it from the settings of a version of the template, for projects of that package name."""
    settings = yaml.safe_load((template / "copier.yml").read_text())
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)

    def patterns(key: str, operation: str) -> list[str]:
        names = {"package_name": package_name, "_copier_operation": operation}
        return [environment.from_string(pattern).render(names) for pattern in settings.get(key, [])]

    on_copy = patterns("_exclude", "copy")
    yours = [pattern for pattern in patterns("_exclude", "update") if pattern not in on_copy]
    skipped = patterns("_skip_if_exists", "update")
    return Ownership(GitIgnoreSpec.from_lines([*yours, *skipped]), GitIgnoreSpec.from_lines(on_copy))


def conditional_files(paths: Mapping[Combination, frozenset[str]]) -> list[str]:
    """Say which files only some answers give: others would delete them, with the owner's edits in them."""
    words = []
    for path in sorted(frozenset().union(*paths.values())):
        if without := [combination.name for combination, its in paths.items() if path not in its]:
            words.append(
                f"{path} is not written for {without[0]}: an update to these answers would delete an owner's edits"
            )
    return words


def lost_files(old: Iterable[str], before: Ownership, new: frozenset[str], now: Ownership) -> list[str]:
    """Say which files of an older version's project an update would delete or begin to touch."""
    words = []
    for path in sorted(path for path in old if not now.kept(path)):
        if path not in new:
            words.append(
                f"{path} is not written any more, and an update would delete it with its owner's edits: "
                "name it in _exclude"
            )
        elif before.yours.match_file(path):
            words.append(f"{path} was the owner's, and is not any more")
    return words


def forgotten_answers(old: Path, new: Path) -> list[str]:
    """Say which answers that a version has recorded another one loses silently; docs/updates.md says what to do."""
    before, after = ({question.key: question for question in read_questions(folder)} for folder in (old, new))
    settings = yaml.safe_load((new / "copier.yml").read_text())
    defaults = [str(settings[key].get("default", "")) for key in after]
    jinja = [part for default in defaults for part in re.findall(r"\{[{%].*?[%}]\}", default, re.DOTALL)]
    wrong = []
    for key, question in before.items():
        if key not in after:
            if not any(re.search(rf"\b{key}\b", part) for part in jinja):
                wrong.append(f"the question {key} went, and no default of another one reads what was answered")
            continue
        choices = [choice.value for choice in after[key].choices]
        gone = [text(choice.value) for choice in question.choices if choice.value not in choices]
        if gone and choices:
            wrong.append(
                f"{key}={', '.join(gone)} went: whoever answered that gets the default, so rename the question"
            )
        elif bool(question.choices) != bool(choices):
            wrong.append(f"{key} takes other answers than before: rename the question")
    return wrong
