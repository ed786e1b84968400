"""Copies of this repository whose template has fewer or more combinations than the real one."""

import math
import shutil
from pathlib import Path
from typing import Any

import yaml

from generator.answers.questions import TEMPLATE, Question
from generator.render.snapshot import PARTS

CODE = ("generator", "benchmarks")
EXTRA = "extra"  # the question that is added
COMMENTED = "template/train.py.jinja"  # the file that tells its answer: the one that differs most between projects


def copy_repository(place: Path) -> Path:
    """Copy the working tree's template and code into a new folder, without any cache, and return that folder."""
    place.mkdir(parents=True)
    for part in (*PARTS, *CODE):
        if (TEMPLATE / part).is_dir():
            shutil.copytree(TEMPLATE / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(TEMPLATE / part, place / part)
    return place


def resize(clone: Path, size: int, legal: int) -> None:
    """Return the template of a clone about so many legal combinations, where it has another number of them now."""
    settings = yaml.safe_load((clone / "copier.yml").read_text())
    if size < legal:
        drop_choices(settings, size)
    elif (answers := round(size / legal)) > 1:
        add_question(settings, answers)
        program = clone / COMMENTED
        program.write_text(f"# {EXTRA}: {{{{ {EXTRA} }}}}\n{program.read_text()}")
    (clone / "copier.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def drop_choices(settings: dict[str, Any], size: int) -> None:
    """Take choices away, always from the question that has most, until there are no more combinations than this."""
    lists = [entry["choices"] for key, entry in settings.items() if not key.startswith("_") and "choices" in entry]
    bools = sum(isinstance(entry, dict) and entry.get("type") == "bool" for entry in settings.values())
    while 2**bools * math.prod(map(len, lists)) > size and max(map(len, lists)) > 1:
        longest = max(lists, key=len)
        longest.pop([*longest][-1])


def add_question(settings: dict[str, Any], answers: int) -> None:
    """Ask one more question, of so many answers, which changes nothing but a comment."""
    values = [f"e{number}" for number in range(answers)]
    choices = {f"{value} (one of {answers})": {"value": value} for value in values}
    settings[EXTRA] = {"type": "str", "help": "Changes a comment", "choices": choices, "default": values[0]}


def candidates(questions: list[Question]) -> int:
    """How many combinations Copier is asked about."""
    return math.prod(len(question.choices) for question in questions if question.choices)
