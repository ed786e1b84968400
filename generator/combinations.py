"""The space of answers: every combination of choices that Copier itself accepts. Nothing is known here of legality."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .cache import Cache
from .questions import TEMPLATE, Question, read_questions
from .rendering import RenderError
from .workers import Workers


@dataclass(frozen=True)
class Combination:
    """One answer to every question that has choices, in the order of copier.yml."""

    answers: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, answers: Mapping[str, Any]) -> "Combination":
        """Make one from a mapping."""
        return cls(tuple(answers.items()))

    @property
    def name(self) -> str:
        """The values of all answers, such as torchrun-auto-none-false-console."""
        return "-".join(text(value) for _, value in self.answers)

    @property
    def as_filters(self) -> str:
        """The answers as the command line takes them, such as launcher=torchrun backend=auto."""
        return " ".join(f"{key}={text(value)}" for key, value in self.answers)

    def __getitem__(self, key: str) -> Any:
        return dict(self.answers)[key]


def text(value: Any) -> str:
    """How an answer is written on a command line: false, not False."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shaping_questions(template: Path = TEMPLATE) -> list[Question]:
    """The questions with choices; the others (names and texts) keep their defaults."""
    return [question for question in read_questions(template) if question.choices]


def legal_combinations(template: Path, workers: Workers, cache: Cache | None = None) -> list[Combination]:
    """Ask Copier about every combination, and give those that it accepts, in the order of copier.yml.

    Raises RenderError where Copier accepts none, or understands an answer as another one.
    """
    questions = shaping_questions(template)
    keys = [question.key for question in questions]
    values = itertools.product(*([choice.value for choice in question.choices] for question in questions))
    product = [Combination(tuple(zip(keys, row, strict=True))) for row in values]
    key = space_key(template)
    verdicts = cache.read("space", key) if cache else None
    if verdicts is None:
        verdicts = workers.legal(template, product)
        if cache:
            cache.write("space", key, verdicts)
    legal = [combination for combination, verdict in zip(product, verdicts, strict=True) if verdict]
    if not legal:
        raise RenderError("Copier accepts no combination of answers: look at the validators in copier.yml")
    return legal


def space_key(template: Path) -> str:
    """What legality depends on: the questions, the Jinja that they import, and Copier."""
    files = [template / "copier.yml", *sorted((template / "partials").rglob("*"))]
    parts = [[str(file.relative_to(template)), file.read_text()] for file in files if file.is_file()]
    return hashlib.sha256(json.dumps([metadata.version("copier"), parts]).encode()).hexdigest()


def by_name(combinations: Iterable[Combination]) -> dict[str, Combination]:
    """Find combinations by their names, which are unique."""
    named = {combination.name: combination for combination in combinations}
    return named
