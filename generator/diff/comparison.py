"""What differs between two versions of the template, over all combinations of answers."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.answers.combinations import Combination, text
from generator.answers.questions import Question, read_questions
from generator.answers.selection import SelectionError, answers_of, as_words, describe, select
from generator.diff.hunks import Group, group_edits
from generator.diff.versions import Pairing, Version, Watch, find_changes, pair_up
from generator.render.workers import Workers


@dataclass(frozen=True)
class VersionDiff:
    """What differs in the chosen combinations of two versions of the template."""

    pairing: Pairing
    groups: list[Group]
    notes: list[str]  # questions, choices and combinations that came (+), went (-) or changed (~), a line each

    @property
    def compared(self) -> list[Combination]:
        """The combinations that both versions have, with the answers to the questions of the new one."""
        return [combination for _, combination in self.pairing.pairs]

    @property
    def changed(self) -> list[Combination]:
        """Those of them whose project differs."""
        members = {combination for group in self.groups for combination in group.combinations}
        return [combination for combination in self.compared if combination in members]


def compare_versions(
    old: Version, new: Version, wanted: Sequence[str], workers: Workers, watch: Watch = lambda futures, _: futures
) -> VersionDiff:
    """Render the chosen combinations from both versions, and return what differs.

    Raises SelectionError if neither version has what is chosen, and RenderError if one cannot be rendered.
    """
    pairing = restrict(pair_up(old, new), old, new, wanted)
    with tempfile.TemporaryDirectory() as store:
        changes = find_changes(old.folder, new.folder, pairing.pairs, workers, Path(store), watch)
        groups = group_edits(changes, Path(store))
    return VersionDiff(pairing, groups, compare_questions(old, new) + compare_legality(pairing, old, new))


def restrict(pairing: Pairing, old: Version, new: Version, wanted: Sequence[str]) -> Pairing:
    """Leave what is chosen in either version. Raises SelectionError if both refuse the choice."""
    chosen: set[Combination] = set()
    refusals = []
    for version in (new, old):
        try:
            chosen.update(select(version.combinations, wanted, version.questions))
        except SelectionError as error:
            refusals.append(error)
    if len(refusals) == 2:
        raise refusals[0]
    return Pairing(
        [pair for pair in pairing.pairs if chosen & set(pair)],
        [combination for combination in pairing.came if combination in chosen],
        [combination for combination in pairing.gone if combination in chosen],
    )


def compare_questions(old_version: Version, new_version: Version) -> list[str]:
    """Say which questions and choices came and went, and which defaults changed, a line each."""
    versions = (old_version, new_version)
    old, new = ({question.key: question for question in read_questions(version.folder)} for version in versions)
    lines = [f"- question {in_words(old[key])}" for key in old if key not in new]
    lines += [f"+ question {in_words(new[key])}" for key in new if key not in old]
    for key in (key for key in new if key in old):
        before, after = (answers_to(questions[key]) for questions in (old, new))
        lines += [f"- choice {key}={answer}" for answer in before if answer not in after]
        lines += [f"+ choice {key}={answer}" for answer in after if answer not in before]
        if old[key].default != new[key].default:
            lines.append(f"~ default of {key}: {one_line(old[key].default)} -> {one_line(new[key].default)}")
    return lines


def in_words(question: Question) -> str:
    """Return a question's key and what it takes."""
    takes = ", ".join(answers_to(question)) or "text"
    return f"{question.key} ({takes}; default {one_line(question.default)})"


def answers_to(question: Question) -> list[str]:
    """The choices of a question, as they are written on a command line."""
    return [text(choice.value) for choice in question.choices]


def one_line(default: object) -> str:
    """Return a default, which may be an expression over several lines, in one line."""
    return " ".join(text(default).split()) or "empty"


def compare_legality(pairing: Pairing, old: Version, new: Version) -> list[str]:
    """Say which combinations only one version has, and why: by answers that the other one does not know, or not."""
    old_ones, new_ones = [pair[0] for pair in pairing.pairs], [pair[1] for pair in pairing.pairs]
    return [
        *explain("-", ("went", "became illegal"), pairing.gone, old_ones, old, new),
        *explain("+", ("came", "became legal"), pairing.came, new_ones, new, old),
    ]


def explain(
    sign: str,
    words: tuple[str, str],
    lonely: Sequence[Combination],
    paired: Sequence[Combination],
    own: Version,
    other: Version,
) -> list[str]:
    """Say how many combinations one version has alone, a line for all that have unknown answers to equal questions."""
    by_unknown: dict[tuple[str, ...], list[Combination]] = {}
    for combination in lonely:
        by_unknown.setdefault(unknown_answers(combination, own, other), []).append(combination)
    lines = []
    for keys, members in by_unknown.items():
        unknown = {question.key: answers_of(question, members) for question in own.questions if question.key in keys}
        filters = as_words(unknown) if keys else describe(members, [*paired, *members], own.questions)
        plural = "s" * (len(members) != 1)
        lines.append(f"{sign} {len(members)} combination{plural} {words[not keys]}{': ' if filters else ''}{filters}")
    return lines


def unknown_answers(combination: Combination, own: Version, other: Version) -> tuple[str, ...]:
    """Return the questions to which the combination has an answer that says nothing in the other version."""
    known = {question.key: answers_to(question) for question in other.questions}
    defaults = {question.key: [text(question.default)] for question in own.questions}
    return tuple(key for key, value in combination.answers if text(value) not in known.get(key, defaults[key]))
