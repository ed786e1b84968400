"""Answers are changed by updates, there and back again; and no new version forgets what was answered."""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from generator.answers.combinations import Combination, text
from generator.answers.questions import Question, read_questions
from generator.render.project import recorded_answers
from generator.render.trees import read_files
from generator.update.ownership import KEPT_ANSWER
from generator.update.replay import (
    UpdateError,
    commit_all,
    conflicts,
    copy_project,
    differing,
    fresh_copy,
    put_under_git,
    update,
    update_again,
)

# Answers to questions that take any text.
TEXTS = ("Digits & more", 'He said "no": 7 * {{ 7 }}', "Zwölf größere Ziffern", "# [none] 'x' \\n %")

Answers = Mapping[str, Any]
Changes = set[tuple[str, frozenset[Any]]]  # of each question two answers


def draw_pairs(
    combinations: Sequence[Combination], questions: Sequence[Question], number: int, seed: int
) -> list[tuple[Answers, Answers]]:
    """Draw so many pairs of answers, or more where not every change of an answer to another one has occurred yet."""
    draw = random.Random(seed)
    values = {key: {one[key] for one in combinations} for key, _ in combinations[0].answers}
    missing = {(key, frozenset(two)) for key in values for two in itertools.combinations(values[key], 2)}
    pairs: list[tuple[Answers, Answers]] = []
    while missing or len(pairs) < number:
        drawn = [(draw.choice(combinations), draw.choice(combinations)) for _ in range(50)]
        one, other = max(drawn, key=lambda pair: len(missing & changes_between(*pair)))
        missing -= changes_between(one, other)
        pairs.append((dict(one.answers) | any_texts(questions, draw), dict(other.answers) | any_texts(questions, draw)))
    return pairs


def changes_between(one: Combination, other: Combination) -> Changes:
    """The answers in which two combinations differ."""
    return {(key, frozenset({value, other[key]})) for key, value in one.answers if value != other[key]}


def any_texts(questions: Sequence[Question], draw: random.Random) -> dict[str, str]:
    """Answer the questions that take any text."""
    return {each.key: draw.choice(TEXTS) for each in questions if not each.choices and each.key != KEPT_ANSWER}


def there_and_back(template: Path, version: str, pair: tuple[Answers, Answers], folder: Path) -> list[str]:
    """Copy a project, change its answers by an update, and change them back: say where it is not what a copy would be.

    The package's name is not changed: it is what the first answers make of it.
    """
    project = folder / "project"
    copy_project(template, version, pair[0], project)
    put_under_git(project)
    kept = {key: answer for key, answer in recorded_answers(project).items() if key == KEPT_ANSWER}
    before = read_files(project)
    wrong = change_answers(template, version, project, {**pair[1], **kept}, folder)
    if not wrong:
        wrong = change_answers(template, version, project, {**pair[0], **kept}, folder)
        wrong += [f"there and back, {words}" for words in differing(read_files(project), before)]
    return wrong


def change_answers(template: Path, version: str, project: Path, answers: Answers, folder: Path) -> list[str]:
    """Change answers by an update, and say what is wrong after it, and after another one that changes nothing."""
    said = "with " + " ".join(f"{key}={text(value)}" for key, value in answers.items())
    try:
        update(project, version, answers)
    except UpdateError as error:
        return [f"{said}: refused: {error}"]
    after = read_files(project)
    wrong = [f"{said}: conflict in {path}, which nobody has edited" for path in conflicts(after)]
    wrong += [
        f"{said}: {words}" for words in differing(after, fresh_copy(template, version, answers, folder / "fresh"))
    ]
    commit_all(project)
    return wrong + [f"{said}: {words}" for words in update_again(project)]


def forgotten_answers(old: Path, new: Path) -> list[str]:
    """Say which answers that a version has recorded are lost where another one is updated to, silently.

    The rules, and what to do instead, are in docs/updates.md.
    """
    before, after = ({question.key: question for question in read_questions(folder)} for folder in (old, new))
    settings = yaml.safe_load((new / "copier.yml").read_text())
    wrong = []
    for key, question in before.items():
        if key not in after:
            if not is_read(key, [str(settings[name].get("default", "")) for name in after]):
                wrong.append(f"the question {key} went, and no default of another one reads what was answered")
            continue
        gone = [text(one.value) for one in question.choices if one.value not in [it.value for it in after[key].choices]]
        if gone and after[key].choices:
            wrong.append(
                f"{key}={', '.join(gone)} went: whoever answered that gets the default, so rename the question"
            )
        elif bool(question.choices) != bool(after[key].choices):
            wrong.append(f"{key} takes other answers than before: rename the question")
    return wrong


def is_read(key: str, defaults: Sequence[str]) -> bool:
    """Whether any of these expressions depends on an answer."""
    jinja = (part for default in defaults for part in re.findall(r"\{[{%].*?[%}]\}", default, re.DOTALL))
    return any(re.search(rf"\b{key}\b", part) for part in jinja)
