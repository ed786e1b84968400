"""Copies and updates projects by Copier itself, as their owners do, and compares them with fresh copies."""

import itertools
import random
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import copier

from generator.answers.combinations import Combination, text
from generator.answers.questions import Ownership, Question, read_ownership
from generator.render.git import conflicts, hermetic_git, run
from generator.render.project import RenderError, Tree, read_files, recorded_answers, run_copier
from generator.update.migrate import Plan, is_to_be_moved, move_project

ROOM = 2 * 2**30  # bytes, for many projects and their updates
# The answer that an update refuses to change: the owner's files are in its folder.
KEPT_ANSWER = "package_name"
# Answers to questions that take any text.
TEXTS = ("Digits & more", 'He said "no": 7 * {{ 7 }}', "Zwölf größere Ziffern", "# [none] 'x' \\n %")

Answers = Mapping[str, Any]
Route = tuple[str, ...]  # tags of the versions that a project goes through: it starts as a copy of the first


class UpdateError(RenderError):
    """Copier refuses an update. The message is one line that says why."""


def copy_project(template: Path, version: str, answers: Answers, project: Path) -> None:
    with hermetic_git(project.parent):
        run_copier(project, answers, template, version=version)


def put_under_git(project: Path) -> None:
    run(project, "init", "--quiet")
    commit_all(project)


def commit_all(project: Path) -> None:
    run(project, "add", "--all")
    run(project, "commit", "--quiet", "--allow-empty", "--message", "All")


def update(project: Path, version: str | None = None, answers: Mapping[str, Any] = {}) -> None:
    """Update a project to a version (None: the newest) and to these answers. Raises UpdateError if Copier refuses."""
    with hermetic_git(project.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            copier.run_update(project, data=dict(answers), defaults=True, overwrite=True, quiet=True, vcs_ref=version)
        except Exception as error:  # also errors of git, YAML and Jinja
            raise UpdateError(in_one_line(error)) from error


def move(project: Path) -> Plan | None:
    """Move a project that an update has brought to version 2, as its owner does; None if there is nothing to move."""
    if not is_to_be_moved(project):
        return None
    with hermetic_git(project.parent):
        return move_project(project)


def in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def update_again(project: Path) -> list[str]:
    before = read_files(project)
    update(project)
    return [f"a second update: {words}" for words in differing(read_files(project), before)]


def differing(one: Tree, other: Tree) -> list[str]:
    """Say which files two trees do not share, or not with the same bytes and mode."""
    words = []
    for path in sorted(one.keys() | other.keys()):
        if path not in one or path not in other:
            words.append(f"{path} {'is missing' if path not in one else 'is too many'}")
        elif one[path] != other[path]:
            words.append(f"{path} has another {'content' if one[path][1] != other[path][1] else 'mode'}")
    return words


def fresh_copy(template: Path, version: str, answers: Answers, place: Path) -> Tree:
    copy_project(template, version, answers, place)
    tree = read_files(place)
    shutil.rmtree(place)
    return tree


def is_text(content: bytes) -> bool:
    """Return whether a file can be read by people, and merged by git."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def carry(template: Path, route: Route, answers: Answers, folder: Path) -> list[str]:
    """Copy a project, which stays in folder/old, update it on its way in folder/new, and say what is wrong there: which
    answers have changed, and where it is not what a fresh copy with its answers is, the owner's files aside.
    """
    old, new = folder / "old", folder / "new"
    copy_project(template, route[0], answers, old)
    shutil.copytree(old, new)
    put_under_git(new)
    before: Tree = {}
    plan = Plan()
    for version in route[1:]:
        before = read_files(new)
        try:
            update(new, version)
        except UpdateError as error:
            return [f"the update to {version} is refused: {error}"]
        if left := conflicts(read_files(new)):
            return [f"the update to {version} leaves a conflict in {path}, which nobody has edited" for path in left]
        if moved := move(new):
            plan = moved
            if plan.left:
                return [f"after the update to {version}, a move leaves to do: {words}" for words in plan.left]
        commit_all(new)
    recorded, answers = recorded_answers(old), recorded_answers(new)
    changed = [key for key in recorded if key in answers and recorded[key] != answers[key]]
    words = [f"the answer {key}={text(recorded[key])} became {text(answers[key])}" for key in changed]
    owned = read_ownership(template, **answers)
    fresh = fresh_copy(template, route[-1], answers, folder / "fresh")
    # What a version between has written for the owner is the owner's since then.
    expected = plan.applied(with_kept_files(fresh, before | read_files(old), owned))
    words += [f"after the update {difference}" for difference in differing(read_files(new), expected)]
    return words + update_again(new)


def with_kept_files(fresh: Tree, before: Tree, owned: Ownership) -> Tree:
    """Return what an update makes of a project: a copy's files, and the owner's, also of old versions, as they were."""
    kept = {path: file for path, file in before.items() if owned.kept(path)}
    return {path: file for path, file in fresh.items() if not owned.kept(path) or owned.new.match_file(path)} | kept


def draw_pairs(
    combinations: Sequence[Combination], questions: Sequence[Question], number: int, seed: int
) -> list[tuple[Answers, Answers]]:
    """Draw a number of pairs of answers, and more until every change of an answer to another one has occurred."""
    draw = random.Random(seed)
    values = {key: {one[key] for one in combinations} for key, _ in combinations[0].answers}
    missing = {(key, frozenset(two)) for key in values for two in itertools.combinations(values[key], 2)}

    def new_changes(pair: Sequence[Combination]) -> set[tuple[str, frozenset[Any]]]:
        return missing & {(key, frozenset({value, pair[1][key]})) for key, value in pair[0].answers}

    pairs: list[tuple[Answers, Answers]] = []
    while missing or len(pairs) < number:
        drawn = [(draw.choice(combinations), draw.choice(combinations)) for _ in range(50)]
        best = max(drawn, key=lambda pair: len(new_changes(pair)))
        missing -= new_changes(best)
        one, other = (dict(combination.answers) | any_texts(questions, draw) for combination in best)
        pairs.append((one, other))
    return pairs


def any_texts(questions: Sequence[Question], draw: random.Random) -> dict[str, str]:
    return {each.key: draw.choice(TEXTS) for each in questions if not each.choices and each.key != KEPT_ANSWER}


def there_and_back(template: Path, version: str, pair: tuple[Answers, Answers], folder: Path) -> list[str]:
    """Change the answers of a project by updates, there and back, and report differences from a fresh copy."""
    project = folder / "project"
    copy_project(template, version, pair[0], project)
    put_under_git(project)
    # Keep the package's name of the first answers.
    kept = {key: answer for key, answer in recorded_answers(project).items() if key == KEPT_ANSWER}
    before = read_files(project)
    wrong = change_answers(template, version, project, {**pair[1], **kept})
    if not wrong:
        owned = read_ownership(template, **{**pair[0], **kept})
        expected = with_kept_files(before, read_files(project), owned)
        wrong = change_answers(template, version, project, {**pair[0], **kept})
        wrong += [f"there and back, {words}" for words in differing(read_files(project), expected)]
    return wrong


def change_answers(template: Path, version: str, project: Path, answers: Answers) -> list[str]:
    """Change answers by an update, and say what is wrong after it, and after another one that changes nothing."""
    before, owned = read_files(project), read_ownership(template, **answers)
    said = "with " + " ".join(f"{key}={text(value)}" for key, value in answers.items())
    try:
        update(project, version, answers)
    except UpdateError as error:
        return [f"{said}: refused: {error}"]
    after = read_files(project)
    wrong = [f"conflict in {path}, which nobody has edited" for path in conflicts(after)]
    fresh = fresh_copy(template, version, answers, project.parent / "fresh")
    wrong += differing(after, with_kept_files(fresh, before, owned))
    commit_all(project)
    return [f"{said}: {words}" for words in wrong + update_again(project)]
