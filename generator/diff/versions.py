"""Two versions of the template: which combinations they have in common, and which questions and answers they do not."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jinja2
import yaml

from generator.answers.combinations import Combination, describe, filter_of, shaping_questions, text
from generator.answers.questions import Question, read_questions
from generator.render.cache import Cache
from generator.render.project import RenderError
from generator.render.workers import Workers, legal_combinations

Pair = tuple[Combination, Combination]  # the old one and the new one


@dataclass(frozen=True)
class Version:
    """One version of the template."""

    folder: Path
    questions: list[Question]  # those with choices
    combinations: list[Combination]  # those that are legal


@dataclass(frozen=True)
class Pairing:
    """The combinations of two versions."""

    pairs: list[Pair]  # what they have in common, in the order of the new version
    came: list[Combination]
    gone: list[Combination]


@contextmanager
def template_errors(template: Path) -> Iterator[None]:
    """Turn what is wrong in the template's YAML or Jinja into a RenderError, which names the file and the line."""
    try:
        yield
    except yaml.YAMLError as error:
        raise RenderError(f"copier.yml: {' '.join(str(error).split())}") from error
    except jinja2.TemplateError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = Path(getattr(error, "filename", None) or frame.filename)
        line = getattr(error, "lineno", None) or frame.lineno
        where = f"{place.relative_to(template)}, line {line}: " if place.is_relative_to(template) else ""
        raise RenderError(f"{where}{error.message or type(error).__name__}") from error


def read_version(template: Path, workers: Workers, cache: Cache | None = None) -> Version:
    """Ask Copier what is legal in a version of the template. Raises RenderError if nothing is."""
    with template_errors(template):
        return Version(template, shaping_questions(template), legal_combinations(template, workers, cache))


def pair_up(old: Version, new: Version, chosen: set[Combination]) -> Pairing:
    """Find the old combination of each new one: the same answers to all questions that both versions ask.

    A question that only one version asks must have its default there: what the project was, or is, without a choice.
    Leaves out what is chosen in neither version.
    """
    before = {common_answers(old_one, old, new): old_one for old_one in old.combinations}
    before.pop(None, None)
    found = [(before.pop(common_answers(each, new, old), None), each) for each in new.combinations]
    pairs = [(old_one, new_one) for old_one, new_one in found if old_one]
    kept = {old_one for old_one, _ in pairs}
    return Pairing(
        [pair for pair in pairs if chosen & {*pair}],
        [new_one for old_one, new_one in found if not old_one and new_one in chosen],
        [old_one for old_one in old.combinations if old_one in chosen - kept],
    )


def common_answers(combination: Combination, own: Version, other: Version) -> frozenset[tuple[str, str]] | None:
    """Return the answers to the questions of both versions, or None if another answer is not the default."""
    shared = {question.key for question in other.questions}
    if any(text(combination[each.key]) != text(each.default) for each in own.questions if each.key not in shared):
        return None
    return frozenset((key, text(value)) for key, value in combination.answers if key in shared)


def compare_questions(old_version: Version, new_version: Version) -> list[str]:
    """Say which questions and choices came and went, and which defaults changed, a line each."""
    old, new = ({each.key: each for each in read_questions(version.folder)} for version in (old_version, new_version))
    lines = []
    for sign, own, other in (("-", old, new), ("+", new, old)):
        for question in (own[key] for key in own if key not in other):
            takes = ", ".join(answers_to(question)) or "text"
            lines.append(f"{sign} question {question.key} ({takes}; default {one_line(question.default)})")
    for key in (key for key in new if key in old):
        before, after = answers_to(old[key]), answers_to(new[key])
        lines += [f"- choice {key}={answer}" for answer in before if answer not in after]
        lines += [f"+ choice {key}={answer}" for answer in after if answer not in before]
        if old[key].default != new[key].default:
            lines.append(f"~ default of {key}: {one_line(old[key].default)} -> {one_line(new[key].default)}")
    return lines


def answers_to(question: Question) -> list[str]:
    """Return the choices of a question, as they are written on a command line."""
    return [text(choice.value) for choice in question.choices]


def one_line(default: object) -> str:
    """Return a default, which may be an expression over several lines, in one line."""
    return " ".join(text(default).split()) or "empty"


def compare_spaces(pairing: Pairing, old: Version, new: Version) -> list[str]:
    """Say which questions, choices and combinations came and went, and which defaults changed, a line each.

    The combinations that only one version has are told by the answers that the other does not know, if there are any.
    """
    old_ones, new_ones = ([pair[side] for pair in pairing.pairs] for side in (0, 1))
    lines = compare_questions(old, new)
    for sign, words, lonely, paired, own, other in (
        ("-", ("went", "became illegal"), pairing.gone, old_ones, old, new),
        ("+", ("came", "became legal"), pairing.came, new_ones, new, old),
    ):
        by_unknown: dict[tuple[str, ...], list[Combination]] = {}
        known = {question.key: answers_to(question) for question in other.questions}
        defaults = {question.key: [text(question.default)] for question in own.questions}
        for combination in lonely:
            keys = tuple(key for key, value in combination.answers if text(value) not in known.get(key, defaults[key]))
            by_unknown.setdefault(keys, []).append(combination)
        for keys, members in by_unknown.items():
            unknown = [question for question in own.questions if question.key in keys]
            filters = filter_of(members, unknown) or describe(members, [*paired, *members], own.questions)
            plural = "s" * (len(members) != 1)
            lines.append(f"{sign} {len(members)} combination{plural} {words[not keys]}{': ' * bool(filters)}{filters}")
    return lines
