"""Every answer to every question that has a choice, read without the generator."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import yaml

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE

SETTINGS = yaml.safe_load((TEMPLATE / "copier.yml").read_text())
ANSWERS: dict[str, list[Any]] = {
    key: [False, True] if entry["type"] == "bool" else [choice["value"] for choice in entry["choices"].values()]
    for key, entry in SETTINGS.items()
    if not key.startswith("_") and ("choices" in entry or entry["type"] == "bool")
}
PRODUCT = [dict(zip(ANSWERS, row, strict=True)) for row in itertools.product(*ANSWERS.values())]


def names(combinations: Sequence[Combination]) -> list[str]:
    return [combination.name for combination in combinations]


def name_of(answers: dict[str, Any]) -> str:
    return "-".join(json.dumps(value).strip('"') for value in answers.values())
