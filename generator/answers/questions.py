"""The questions of the template, as copier.yml asks them. Nothing is known here that is not in that file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Choice:
    value: Any
    label: str  # what Copier shows for it
    conditional: bool  # whether a validator may refuse it, depending on other answers


@dataclass(frozen=True)
class Question:
    key: str
    help: str
    default: Any
    choices: tuple[Choice, ...]  # empty for free text; false and true for a bool


def read_questions(template: Path = TEMPLATE) -> list[Question]:
    """Read the questions that a user is asked, in their order; computed values (when: false) are none."""
    return questions_in((template / "copier.yml").read_text())


def questions_in(copier_yml: str) -> list[Question]:
    questions = []
    for key, entry in yaml.safe_load(copier_yml).items():
        if key.startswith("_") or entry.get("when", True) is False:
            continue
        choices = entry.get("choices", {}).items()
        read = [Choice(choice["value"], label, "validator" in choice) for label, choice in choices]
        if entry["type"] == "bool":
            read = [Choice(False, "no", False), Choice(True, "yes", False)]
        questions.append(Question(key, entry["help"], entry.get("default"), tuple(read)))
    return questions
