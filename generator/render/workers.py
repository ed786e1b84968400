"""Renders many projects at once, in processes that keep what Copier would repeat for each project."""

import functools
import itertools
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jinja2
import yaml
from plumbum import local

from generator.answers.combinations import Combination, shaping_questions
from generator.answers.questions import groups_of_answers, read_ownership
from generator.render.cache import Cache, Remembered
from generator.render.project import RenderError, assert_understood, code_digests, read_tree, run_copier, tree_digest
from generator.render.scratch import interrupts_kept_from_children


@dataclass(frozen=True)
class Rendered:
    digest: str  # of its tree
    code: str  # hash of the template's code in it
    own: str  # hash of its owner's files
    partials: frozenset[str]  # that were read to write it: paths in the template


ownership = functools.cache(read_ownership)  # no template changes meanwhile
FILES_READ: set[str] = set()  # the files of Jinja that this process has compiled lately


class Workers:
    """A context manager of one process for each core. An error or an interrupt ends them at once."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or len(os.sched_getaffinity(0))
        # spawn, since a fork of a process with threads, such as a progress bar, can hang.
        context = get_context("spawn")
        closed, self.open = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(self.processes, mp_context=context, initializer=prepare, initargs=(closed,))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.open.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.open.close()

    def render(self, template: Path, combination: Combination, destination: Path) -> Future[Rendered]:
        return self.submit(render_combination, template, combination, destination)

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        with interrupts_kept_from_children():
            return self.pool.submit(work, *arguments)


def prepare(closed: Connection) -> None:
    """Make this process render quickly, with the same output. It ends when its parent closes the pipe."""
    threading.Thread(target=end_with, args=(closed,), daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    local.env["PATH"] = ""  # without git, Copier does not ask it about each file that it writes
    speed_up_copier()


def end_with(closed: Connection) -> None:
    """Wait until the parent closes its end of a pipe, or ends; then end this process at once."""
    closed.poll(None)
    os._exit(1)


def speed_up_copier() -> None:
    """Make Jinja compile each text once, and note which files it compiles; and read YAML by its library in C."""
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]  # 7 times as fast
    compile_anew = jinja2.Environment.compile
    compiled: dict[tuple[Any, ...], Any] = {}

    def compile_once(self: jinja2.Environment, source: Any, *arguments: Any, **options: Any) -> Any:
        FILES_READ.update(word for word in arguments if isinstance(word, str))
        key = (type(self), source, arguments, *options.items())
        if key not in compiled:
            compiled[key] = compile_anew(self, source, *arguments, **options)
        return compiled[key]

    jinja2.Environment.compile = compile_once  # type: ignore[method-assign]


def is_legal(questions: Path, combination: Combination) -> tuple[bool, frozenset[str]]:
    """Whether Copier accepts the answers, and the partials that it reads. Raises RenderError if it misunderstands."""
    answers = dict(combination.answers)
    FILES_READ.clear()
    try:
        recorded = run_copier(questions / "nowhere", answers, questions, pretend=True)
    except RenderError:
        return False, partials_read(questions)
    assert_understood(answers, recorded)
    return True, partials_read(questions)


def render_combination(template: Path, combination: Combination, destination: Path) -> Rendered:
    answers = dict(combination.answers)
    FILES_READ.clear()
    recorded = run_copier(destination, answers, template)
    assert_understood(answers, recorded)
    owned = ownership(template, package_name=recorded.get("package_name", ""))
    tree = read_tree(destination)
    return Rendered(tree_digest(tree), *code_digests(tree, owned), partials_read(template))


def partials_read(template: Path) -> frozenset[str]:
    """The partials of a template that were compiled since FILES_READ was cleared."""
    read = (Path(file) for file in FILES_READ)
    return frozenset(str(file.relative_to(template)) for file in read if file.is_relative_to(template / "partials"))


def legal_combinations(template: Path, workers: Workers, cache: Cache | None = None) -> list[Combination]:
    """Find out from Copier which combinations it accepts, and return them in the order of copier.yml."""
    questions = shaping_questions(template)
    keys = [question.key for question in questions]
    values = itertools.product(*([choice.value for choice in question.choices] for question in questions))
    product = [Combination(tuple(zip(keys, row, strict=True))) for row in values]
    remembered = Remembered(cache, "space", template, ["copier.yml"])
    verdicts = remembered.read("all")
    if verdicts is None:
        verdicts, partials = ask_about(product, template, workers)
        remembered.write("all", verdicts, partials)
    legal = [combination for combination, verdict in zip(product, verdicts, strict=True) if verdict]
    if not legal:
        raise RenderError("Copier accepts no combination of answers: look at the validators in copier.yml")
    return legal


def ask_about(product: Sequence[Combination], template: Path, workers: Workers) -> tuple[list[bool], frozenset[str]]:
    """Say of each combination whether Copier accepts it, asking once about answers that meet (decision 0033)."""
    defaults = {}
    for question in shaping_questions(template):
        values = [choice.value for choice in question.choices]
        defaults[question.key] = question.default if question.default in values else values[0]  # it is computed
    groups, parts = groups_of_answers(template), {}
    for each in product:
        parts[each] = [Combination.of({**defaults, **{key: each[key] for key in group}}) for group in groups]
    verdicts, partials = ask([*dict.fromkeys(itertools.chain(*parts.values()))], template, workers)
    if not verdicts[Combination.of(defaults)]:  # the defaults themselves are illegal
        verdicts, partials = ask(product, template, workers)
        return [verdicts[each] for each in product], partials
    return [all(verdicts[part] for part in parts[each]) for each in product], partials


def ask(
    combinations: Sequence[Combination], template: Path, workers: Workers
) -> tuple[dict[Combination, bool], frozenset[str]]:
    """Ask Copier whether it accepts each of these; return that, and the partials that it read."""
    with tempfile.TemporaryDirectory() as folder:
        # Without the files that it writes, asking a template takes a third of the time.
        questions = Path(folder) / "questions"
        (questions / "template").mkdir(parents=True)
        shutil.copy2(template / "copier.yml", questions)
        shutil.copytree(template / "partials", questions / "partials")
        size = max(1, len(combinations) // (4 * workers.processes))
        with interrupts_kept_from_children():
            answers = workers.pool.map(functools.partial(is_legal, questions), combinations, chunksize=size)
        verdicts, partials = zip(*answers, strict=True)
    return dict(zip(combinations, verdicts, strict=True)), frozenset().union(*partials)
