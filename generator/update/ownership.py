"""What a new version must leave to owners: the files that are theirs by copier.yml, and all that they answered."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from pathspec import GitIgnoreSpec

from generator.answers.combinations import Combination, text
from generator.answers.ownership import Ownership
from generator.answers.questions import read_questions

# What one launcher alone needs, beside the files that all answers give: UPDATING.md says when an update deletes it.
OF_ONE_LAUNCHER = GitIgnoreSpec.from_lines(["/*/runtime/ray_nodes.py", "/apptainer.def"])
# The one answer that an update refuses to change: the owner's files are in its folder.
KEPT_ANSWER = "package_name"


def conditional_files(paths: Mapping[Combination, frozenset[str]], owned: Ownership) -> list[str]:
    """Say which files only some answers give: others would delete them, with their edits, unless they are kept."""
    words = []
    written = frozenset().union(*paths.values())
    for path in sorted(path for path in written if not owned.kept(path) and not OF_ONE_LAUNCHER.match_file(path)):
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
