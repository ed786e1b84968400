"""The space of answers: every combination of choices that Copier itself accepts. Nothing is known here of legality."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.answers.questions import TEMPLATE, Question, read_questions


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

    @property
    def launcher(self) -> str:
        """What starts its ranks; "" if the template does not ask."""
        return str(dict(self.answers).get("launcher", ""))

    @property
    def logger(self) -> str:
        """What records its metrics; "" if the template does not ask."""
        return str(dict(self.answers).get("logging", ""))

    def __getitem__(self, key: str) -> Any:
        return dict(self.answers)[key]


def text(value: Any) -> str:
    """How an answer is written on a command line: false, not False."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shaping_questions(template: Path = TEMPLATE) -> list[Question]:
    """The questions with choices; the others (names and texts) keep their defaults."""
    return [question for question in read_questions(template) if question.choices]


def by_name(combinations: Iterable[Combination]) -> dict[str, Combination]:
    """Find combinations by their names, which are unique."""
    named = {combination.name: combination for combination in combinations}
    return named
