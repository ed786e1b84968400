"""What two versions of the template, or two sets of answers, make different in the projects that come of them."""

import hashlib
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

from generator.answers.combinations import Combination, shaping_questions, text
from generator.answers.questions import Question
from generator.render.cache import Cache
from generator.render.project import RenderError
from generator.render.scratch import scratch_folder
from generator.render.trees import read_tree, tree_digest
from generator.render.workers import Workers, legal_combinations, render_combination

ROOM = 2**28  # bytes: few projects are there at the same time

Pair = tuple[Combination, Combination]  # the old one and the new one
Watch = Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]  # sees each of so many futures as it is done


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


@dataclass(frozen=True)
class File:
    """A file of a project."""

    executable: bool
    digest: str  # of its content, which the store has under this name

    @property
    def mode(self) -> str:
        """Its mode, as git writes it."""
        return "100755" if self.executable else "100644"


@dataclass(frozen=True)
class Change:
    """A file that is another one in the new project; None if it is not there."""

    path: str
    old: File | None
    new: File | None


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


def pair_up(old: Version, new: Version) -> Pairing:
    """Find the old combination of each new one: the same answers to all questions that both versions ask.

    A question that only one version asks must have its default there: what the project was, or is, without a choice.
    """
    before = {key: old_one for old_one in old.combinations if (key := common_answers(old_one, old, new)) is not None}
    pairs, came = [], []
    for combination in new.combinations:
        key = common_answers(combination, new, old)
        if key in before:
            pairs.append((before.pop(key), combination))
        else:
            came.append(combination)
    kept = {old_one for old_one, _ in pairs}
    return Pairing(pairs, came, [combination for combination in old.combinations if combination not in kept])


def common_answers(combination: Combination, own: Version, other: Version) -> frozenset[tuple[str, str]] | None:
    """Return the answers to the questions of both versions, or None if another answer is not the default."""
    shared = {question.key for question in other.questions}
    for question in own.questions:
        if question.key not in shared and text(combination[question.key]) != text(question.default):
            return None
    return frozenset((key, text(value)) for key, value in combination.answers if key in shared)


def changed_combinations(
    old: Path,
    new: Path,
    workers: Workers,
    *,
    among: Sequence[Combination] | None = None,
    cache: Cache | None = None,
    watch: Watch = lambda futures, _: futures,
) -> list[Combination]:
    """Return the combinations of the new version whose project is another one than in the old version, or is new.

    Both versions are snapshots. Only those among the given ones are looked at. Raises RenderError if one version
    cannot be rendered.
    """
    versions = read_version(old, workers, cache), read_version(new, workers, cache)
    pairing = pair_up(*versions)
    wanted = set(versions[1].combinations if among is None else among)
    with tempfile.TemporaryDirectory() as store:
        pairs = [pair for pair in pairing.pairs if pair[1] in wanted]
        changes = find_changes(old, new, pairs, workers, Path(store), watch)
    changed = wanted & {*pairing.came, *(combination for (_, combination), files in changes.items() if files)}
    return [combination for combination in versions[1].combinations if combination in changed]


def find_changes(
    old: Path,
    new: Path,
    pairs: Sequence[Pair],
    workers: Workers,
    store: Path,
    watch: Watch = lambda futures, _: futures,
) -> Mapping[Pair, list[Change]]:
    """Render each pair from the two snapshots, and return the files that differ; the store gets their contents.

    Raises RenderError, which names the combination, if one cannot be rendered.
    """
    if tree_digest(old) == tree_digest(new):
        return {pair: [] for pair in pairs}
    with scratch_folder(ROOM) as folder:
        jobs = {
            workers.submit(changes_of, (old, pair[0]), (new, pair[1]), folder / str(number), store): pair
            for number, pair in enumerate(pairs)
        }
        try:
            found = {jobs[job]: result_of(job, jobs[job]) for job in watch(as_completed(jobs), len(jobs))}
        finally:
            # Nobody may write to the folder any more when it goes.
            wait([job for job in jobs if not job.cancel()])
    return {pair: found[pair] for pair in pairs}


def result_of(job: Future[list[Change]], pair: Pair) -> list[Change]:
    """Return the result. Raises RenderError, which names the combination, if there is none."""
    try:
        return job.result()
    except RenderError as error:
        raise RenderError(f"{pair[1].name}: {error}") from error


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
            old_file, new_file = (keep(side[path], store) if path in side else None for side in (before, after))
            changes.append(Change(path, old_file, new_file))
    return changes


def keep(found: tuple[bool, bytes], store: Path) -> File:
    """Put a file's content into the store; many processes may do so at the same time."""
    executable, content = found
    file = File(executable, hashlib.sha256(content).hexdigest())
    if not (store / file.digest).exists():
        with tempfile.NamedTemporaryFile(dir=store, delete=False) as temporary:
            temporary.write(content)
        Path(temporary.name).replace(store / file.digest)
    return file
