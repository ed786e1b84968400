"""What differs between the projects of two sets of answers, or of two versions of the template: each edit once."""

import hashlib
import io
import itertools
import os
import re
import shlex
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from generator.answers.combinations import Combination, SelectionError, describe, filter_of, select, text
from generator.answers.questions import TEMPLATE, Question, read_questions
from generator.render.cache import Cache
from generator.render.git import compare_folders
from generator.render.project import RenderError, name_source, read_tree, render
from generator.render.scratch import scratch_folder
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers, legal_combinations, render_combination

Pair = tuple[Combination, Combination]  # the old one and the new one
ROOM = 2**28  # bytes, since few projects exist at the same time
Watch = Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]  # yields futures as they complete
File = tuple[bool, str]  # whether it is executable, and its name in the store
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? .*\n((?:[-+\\].*\n)*)", re.MULTILINE)
Edit = tuple[str, str, int]  # file, diff without context, and a number for equal ones


@dataclass(frozen=True)
class Version:
    folder: Path
    questions: list[Question]  # those with choices
    combinations: list[Combination]  # those that are legal


@dataclass(frozen=True)
class Pairing:
    pairs: list[Pair]  # combinations that both have, in the order of the new version
    came: list[Combination]
    gone: list[Combination]


@contextmanager
def template_errors(template: Path) -> Iterator[None]:
    """Turn an error in the template's YAML or Jinja into a RenderError that names the file and the line."""
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
    with template_errors(template):
        questions = [question for question in read_questions(template) if question.choices]
        return Version(template, questions, legal_combinations(template, workers, cache))


def pair_up(old: Version, new: Version, chosen: set[Combination]) -> Pairing:
    """Find the old combination of each new one; a question that only one version asks has its default there."""
    before = {common_answers(old_one, old, new): old_one for old_one in old.combinations}
    before.pop(None, None)
    found = [(before.pop(common_answers(each, new, old), None), each) for each in new.combinations]
    pairs = [(old_one, new_one) for old_one, new_one in found if old_one]
    kept = {old_one for old_one, _ in pairs}
    came = [new_one for old_one, new_one in found if not old_one and new_one in chosen]
    gone = [old_one for old_one in old.combinations if old_one in chosen - kept]
    return Pairing([pair for pair in pairs if chosen & {*pair}], came, gone)


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
    return [text(choice.value) for choice in question.choices]


def one_line(default: object) -> str:
    return " ".join(text(default).split()) or "empty"


def compare_spaces(pairing: Pairing, old: Version, new: Version) -> list[str]:
    """Say which questions, choices and combinations came and went, and which defaults changed, a line each."""
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


@dataclass(frozen=True)
class Change:
    """A file that is another one in the new project; None if it is not there."""

    path: str
    old: File | None
    new: File | None


@dataclass(frozen=True)
class Group:
    combinations: list[Combination]
    diff: str  # what these edits alone make of the old files of the first of the projects


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
        members = {combination for group in self.groups for combination in group.combinations}
        return [combination for combination in self.compared if combination in members]


def compare_versions(
    old: Version, new: Version, wanted: Sequence[str], workers: Workers, watch: Watch = lambda futures, _: futures
) -> VersionDiff:
    """Render the chosen combinations from both versions, and return what differs."""
    chosen, refusals = set[Combination](), []
    for version in (new, old):
        try:
            chosen.update(select(version.combinations, wanted, version.questions))
        except SelectionError as error:
            refusals.append(error)
    if len(refusals) == 2:
        raise refusals[0]
    pairing = pair_up(old, new, chosen)
    with tempfile.TemporaryDirectory() as store:
        changes = find_changes(old.folder, new.folder, pairing.pairs, workers, Path(store), watch)
        groups = group_edits(changes, Path(store))
    return VersionDiff(pairing, groups, compare_spaces(pairing, old, new))


def changed_combinations(
    old: Version, new: Version, among: list[Combination], workers: Workers, watch: Watch = lambda futures, _: futures
) -> list[Combination]:
    """Return the combinations among these whose project differs from the old version, or is new."""
    pairing = pair_up(old, new, {*among})
    with tempfile.TemporaryDirectory() as store:
        changes = find_changes(old.folder, new.folder, pairing.pairs, workers, Path(store), watch)
    changed = {*pairing.came, *(combination for (_, combination), files in changes.items() if files)}
    return [combination for combination in new.combinations if combination in changed]


def find_changes(
    old: Path, new: Path, pairs: Sequence[Pair], workers: Workers, store: Path, watch: Watch
) -> dict[Pair, list[Change]]:
    """Render each pair from the two snapshots, and return the files that differ; the store gets their contents."""
    found: dict[Pair, list[Change]] = {pair: [] for pair in pairs}
    if read_tree(old) == read_tree(new):
        return found
    with scratch_folder(ROOM) as folder:
        jobs = {}
        for number, pair in enumerate(pairs):
            sides = (old, pair[0]), (new, pair[1])
            jobs[workers.submit(changes_of, *sides, folder / str(number), store)] = pair
        try:
            for job in watch(as_completed(jobs), len(jobs)):
                found[jobs[job]] = job.result()
        except RenderError as error:
            raise RenderError(f"{jobs[job][1].name}: {error}") from error
        finally:
            # Nobody may write to the folder any more when it goes.
            wait([job for job in jobs if not job.cancel()])
    return found


def changes_of(old: tuple[Path, Combination], new: tuple[Path, Combination], folder: Path, store: Path) -> list[Change]:
    """Render two versions of a project, and return the files that differ; the store gets their contents."""
    try:
        with template_errors(old[0]):
            digest = render_combination(*old, folder / "old").digest
        with template_errors(new[0]):
            if render_combination(*new, folder / "new").digest == digest:
                return []
        before, after = read_tree(folder / "old"), read_tree(folder / "new")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    changes = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            old_file, new_file = (keep(*side[path], store) if path in side else None for side in (before, after))
            changes.append(Change(path, old_file, new_file))
    return changes


def keep(executable: bool, content: bytes, store: Path) -> File:
    """Put a file into the store; many processes may do so at the same time."""
    name = hashlib.sha256(repr((executable, content)).encode()).hexdigest()
    if not (store / name).exists():
        temporary = store / f"{name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.chmod(0o755 if executable else 0o644)
        temporary.replace(store / name)
    return executable, name


def group_edits(changes: Mapping[Pair, Sequence[Change]], store: Path) -> list[Group]:
    """Return the changes of all projects as few edits, the most common first."""
    distinct = list(dict.fromkeys(change for files in changes.values() for change in files))
    shown = map(read_edits, distinct, show_changes(distinct, store, "--unified=0"))
    edits = dict(zip(distinct, shown, strict=True))
    having: dict[Edit, list[Pair]] = {}
    for pair, files in changes.items():
        for edit in itertools.chain.from_iterable(edits[change] for change in files):
            having.setdefault(edit, []).append(pair)
    together: dict[tuple[Pair, ...], set[Edit]] = {}
    for edit, pairs in having.items():
        together.setdefault(tuple(pairs), set()).add(edit)
    groups = []
    for members, own in sorted(together.items(), key=lambda item: -len(item[0])):
        files = [change for change in changes[members[0]] if own & edits[change].keys()]
        first = [only(own, change, edits[change], store) for change in files]
        groups.append(Group([new for _, new in members], "".join(show_changes(first, store))))
    return groups


def show_changes(changes: Sequence[Change], store: Path, *options: str) -> list[str]:
    """Return what git shows of each change, all of which it compares at once, each file under its number."""
    with tempfile.TemporaryDirectory(dir=store) as folder:
        old, new = Path(folder) / "old", Path(folder) / "new"
        for side, files in ((old, [change.old for change in changes]), (new, [change.new for change in changes])):
            side.mkdir()
            for number, file in enumerate(files):
                if file:
                    os.link(store / file[1], side / str(number))
        printed = compare_folders(old, new, "--no-renames", *options)
    shown = [""] * len(changes)
    # Lines of files begin with a space, +, - or a backslash: what else begins a line is git's own.
    for section in re.split(r"^(?=diff --git a/)", printed, flags=re.MULTILINE)[1:]:
        header, at, hunks = section.partition("\n@@ ")
        number = int(re.findall(r"\d+", header)[0])
        path = changes[number].path.replace("\\", "\\\\")
        header = re.sub(r"\b([ab])/\d+\b", rf"\1/{path}", re.sub(r"\nindex .*", "", header))
        shown[number] = f"{header}{at}{hunks}"
    return shown


def read_edits(change: Change, shown: str) -> dict[Edit, slice]:
    """Read the edits of one file from what git shows without context, each with the old lines that it replaces."""
    if not change.old or not change.new or "\nBinary files " in shown.partition("\n@@ ")[0]:
        return {(change.path, f"{change.old} {change.new}", 0): slice(0)}
    edits = {(change.path, f"mode {change.new[0]}", 0): slice(0)} if change.old[0] != change.new[0] else {}
    for start, count, edit in HUNK.findall(shown):
        length = int(count or 1)
        begin = int(start) - (length > 0)  # where there are no lines, git names the line before them
        equal = sum(edit == other for _, other, _ in edits)
        edits[change.path, edit, equal] = slice(begin, begin + length)
    return edits


def only(chosen: set[Edit], change: Change, edits: Mapping[Edit, slice], store: Path) -> Change:
    """Return a change of which only the chosen edits are left; the store gets the new file."""
    if chosen >= edits.keys() or not change.old or not change.new:
        return change
    executable = change.old[0]
    lines = list(io.StringIO((store / change.old[1]).read_bytes().decode(errors="surrogateescape")))
    for edit in reversed([edit for edit in edits if edit in chosen]):
        if edit[1].startswith("mode "):
            executable = change.new[0]
        else:
            added = re.findall(r"^\+(.*\n)(\\?)", edit[1], flags=re.MULTILINE)
            lines[edits[edit]] = [line[:-1] if endless else line for line, endless in added]
    content = "".join(lines).encode(errors="surrogateescape")
    return Change(change.path, change.old, keep(executable, content, store))


def read_side(side: str) -> dict[str, str]:
    """Split KEY=VALUE pairs at spaces, with quotes as in a shell. Raises RenderError if they are no such pairs."""
    try:
        pairs = shlex.split(side)
    except ValueError as error:
        raise RenderError(f"{side} is not understood: {error}") from None
    return read_pairs(pairs, hint="; spaces need quotes, such as \"project_name='My project'\"", where=f" in {side}")


def read_pairs(pairs: Iterable[str], option: str = "", hint: str = "", where: str = "") -> dict[str, str]:
    """Split KEY=VALUE pairs. Raises RenderError, with these words in it, if one has no "=" or a key comes twice."""
    answers: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RenderError(f"{option}{pair} is no KEY=VALUE, such as launcher=slurm{hint}")
        if key in answers:
            raise RenderError(f"{option}{key} is given twice{where}")
        answers[key] = value
    return answers


def compare_answers(old: Mapping[str, str], new: Mapping[str, str], template: Path = TEMPLATE) -> str:
    """Render the defaults with old and with new answers, and return the patch for git apply between the projects."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        snapshot = take_snapshot(folder / "template", template)
        for name, answers in (("old", old), ("new", new)):
            with template_errors(snapshot):
                render(folder / name, answers, template=snapshot)
            name_source(folder / name, ".")  # otherwise equal answers would differ in the source
        return without_source(compare_folders(folder / "old", folder / "new", "--find-renames"))


def without_source(diff: str) -> str:
    """Leave out the lines around an edit of the answers that say where the template is: each project has its own."""

    def shorten(hunk: re.Match[str]) -> str:
        begin, length, new_begin, new_length = map(int, hunk.groups()[:4])
        left_out = hunk[5].count("\n")
        old, new = f"{begin + left_out},{length - left_out}", f"{new_begin + left_out},{new_length - left_out}"
        return f"@@ -{old} +{new} @@\n"

    first = r"(?<=\n\+\+\+ b/\.copier-answers\.yml\n)@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n((?: [_# ].*\n)+)"
    return re.sub(first, shorten, diff)
