"""Checks many combinations: renders, reads, trains and compares them, and remembers those that passed."""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .cache import Cache
from .combinations import Combination, shaping_questions
from .conditions import runner_digest, versions
from .covers import greedy_cover
from .launchers.real import compare_with_launcher, launchers_ready
from .progress import Advance
from .questions import TEMPLATE
from .remembered import PARTIALS, Remembered
from .rendering import run_copier
from .results import Failure, Outcome, Verdict
from .scratch import working_folder
from .selection import covering
from .snapshot import PARTS, take_snapshot
from .static import (
    Complaints,
    SourceFile,
    check_format,
    check_lint,
    check_types,
    distinct,
    source_files,
    tool_versions,
)
from .training.bytecode import lay_ready
from .training.forking import Job, forking, train_all
from .training.imports import imports_of
from .training.program import Trained, Trial, compare, first_uses, numeric_class, try_out
from .workers import Workers

STATIC = {"format": check_format, "lint": check_lint, "types": check_types}
ROOM_OF_EACH = 4 * 2**20  # bytes: a project and its runs


@dataclass
class Check:
    """What to check, and how."""

    combinations: Sequence[Combination]
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    keep: bool = False  # whether to keep all projects and runs, and not only those that fail
    launchers: str = "forked"  # or "real": a covering set runs by its real launchers, too
    progress: Advance = lambda stage, done, total: None
    selection: str = "all"
    kept: Path | None = field(default=None, init=False)  # the folder with what was left behind

    def run(self, workers: Workers) -> Verdict:
        """Check. Whatever ends it early leaves no process of its own behind, and no folder that it has made."""
        started = time.perf_counter()
        questions = shaping_questions(self.template)
        verdict = Verdict([], questions, selection=self.selection, launchers=self.launchers, versions=versions())
        with working_folder(len(self.combinations) * ROOM_OF_EACH) as folder, ExitStack() as stack:
            state = State(self, folder, workers, verdict, stack)
            with state.stage("render"):
                state.render()
                state.recall()
            futures = state.begin_static()
            state.train()
            state.end_static(futures)
            state.compare()
            if self.launchers == "real":
                state.train_really()
            verdict.outcomes = state.judge()
            state.tidy()
        self.kept = state.left_at if state.left_at.exists() else None
        verdict.wall = time.perf_counter() - started
        return verdict


class State:
    """What is known while a check goes on."""

    def __init__(self, check: Check, folder: Path, workers: Workers, verdict: Verdict, stack: ExitStack) -> None:
        self.check = check
        self.folder = folder
        self.left_at = Path(tempfile.gettempdir()) / folder.name  # where it is for people to look at, in the end
        self.workers = workers
        self.verdict = verdict
        self.stack = stack  # of what must end with the check
        self.name_modules: Callable[[Iterable[str]], None] | None = None  # to the process that ranks are forked from
        self.outcomes = {each: Outcome(each) for each in check.combinations}
        self.digests: dict[Combination, str] = {}  # of rendered trees
        self.trained: dict[Combination, Trained] = {}
        self.fresh: list[Combination] = []  # rendered, and not known from the cache
        self.runner = runner_digest()
        self.snapshot = take_snapshot(folder / "template", check.template)
        self.known_trees = Remembered(check.cache, "trees", self.snapshot, [part for part in PARTS if part != PARTIALS])

    def place(self, combination: Combination) -> Path:
        """The folder of a combination."""
        return self.folder / combination.name

    def project(self, combination: Combination) -> Path:
        """The rendered project of a combination."""
        return self.place(combination) / "project"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage."""
        started = time.perf_counter()
        yield
        self.verdict.stages[name] = self.verdict.stages.get(name, 0.0) + time.perf_counter() - started

    def fail(self, combination: Combination, stage: str, text: str) -> None:
        """Note what is wrong with a combination."""
        said = text.replace(str(self.folder), str(self.left_at))
        self.outcomes[combination].failures.append(Failure(stage, said, str(self.left_at / combination.name)))

    def render(self) -> None:
        """Let Copier write all projects, but those whose tree is known and has passed an earlier check."""
        trees = {} if self.check.keep else {each: self.known_trees.read(each.name) for each in self.check.combinations}
        self.digests = {each: digest for each, digest in trees.items() if digest and self.recorded(digest)}
        unknown = [each for each in self.check.combinations if each not in self.digests]
        if unknown:
            self.begin_forking()
        self.write(unknown)

    def write(self, combinations: Sequence[Combination]) -> None:
        """Let Copier write some projects."""
        jobs = {each: self.workers.render(self.snapshot, each, self.project(each)) for each in combinations}
        for done, (combination, job) in enumerate(jobs.items(), start=1):
            try:
                rendered = job.result()
            except Exception as error:  # Copier lets the errors of Jinja, YAML and others through
                self.fail(combination, "render", f"{type(error).__name__}: {error}")
            else:
                self.digests[combination] = rendered.digest
                self.known_trees.write(combination.name, rendered.digest, rendered.partials)
            self.check.progress("render", done, len(jobs))

    def write_missing(self, combinations: Sequence[Combination]) -> None:
        """Let Copier write those of the projects that nobody has needed before."""
        self.write([each for each in combinations if not self.project(each).exists()])

    def recorded(self, digest: str) -> Any:
        """What an earlier check found out about a tree, if it passed."""
        return self.check.cache.read("passed", self.key(digest)) if self.check.cache else None

    def key(self, digest: str) -> str:
        """What the verdict on a tree depends on."""
        return hashlib.sha256(f"{digest} {self.runner}".encode()).hexdigest()

    def recall(self) -> None:
        """Take over what is known from an earlier check, for trees that passed it."""
        for combination, digest in self.digests.items():
            known = self.recorded(digest)
            if known is None:
                self.fresh.append(combination)
            else:
                self.trained[combination] = Trained(**known)
                self.outcomes[combination].cached = True
        self.references = [each for each in map(self.needed_reference, self.classes().values()) if each is not None]

    def needed_reference(self, members: Sequence[Combination]) -> Combination | None:
        """Give the one of a class that is to run without a stop, too; None where this is known of one of them."""
        if any(each in self.trained and self.trained[each].whole for each in members):
            return None
        first = next((each for each in members if each in self.fresh), members[0])
        if first not in self.fresh:  # known, but not without a stop
            del self.trained[first]
            self.outcomes[first].cached = False
            self.fresh.append(first)
            self.write_missing([first])
        return first

    def classes(self) -> dict[Any, list[Combination]]:
        """The combinations that were rendered, by what decides their numbers."""
        classes: dict[Any, list[Combination]] = {}
        for combination in self.digests:
            classes.setdefault(numeric_class(combination), []).append(combination)
        return classes

    def begin_static(self) -> dict[str, tuple[list[SourceFile], Future[tuple[Complaints, float]]]]:
        """Let other processes read the files that no tool has read yet, if there are any."""
        self.sources = {self.project(each): source_files(self.project(each)) for each in self.fresh}
        files = distinct(file for files in self.sources.values() for file in files)
        begun = {}
        for stage in STATIC:
            unread = [file for file in files if not self.is_known(stage, file)]
            if not unread:
                self.verdict.stages[stage] = 0.0
                continue
            if stage == "types":
                having = {project: {file.key for file in own} for project, own in self.sources.items()}
                cover = greedy_cover(having, {file.key for file in unread})
                mypy_cache = (self.check.cache or Cache()).folder / "mypy"
                job = self.workers.submit(timed, check_types, cover, self.folder / "types", mypy_cache)
            else:
                job = self.workers.submit(timed, STATIC[stage], unread)
            begun[stage] = (unread, job)
        return begun

    def static_key(self, stage: str, file: SourceFile) -> str:
        """What the verdict of a tool on a file depends on."""
        return hashlib.sha256(f"{stage} {file.key} {tool_versions()}".encode()).hexdigest()

    def is_known(self, stage: str, file: SourceFile) -> bool:
        """Whether a tool has found nothing wrong with a file before."""
        return self.check.cache is not None and self.check.cache.read("files", self.static_key(stage, file)) is not None

    def end_static(self, begun: dict[str, tuple[list[SourceFile], Future[tuple[Complaints, float]]]]) -> None:
        """Take what the tools say, for every combination that has the file."""
        for stage, (unread, job) in begun.items():
            complaints, self.verdict.stages[stage] = job.result()
            for combination in self.fresh:
                for file in self.sources[self.project(combination)]:
                    if file.key in complaints:
                        self.fail(combination, stage, complaints[file.key])
            if self.check.cache:
                for file in unread:
                    if file.key not in complaints:
                        self.check.cache.write("files", self.static_key(stage, file), str(file.path))
            self.check.progress(stage, 1, 1)

    def begin_forking(self) -> Callable[[Iterable[str]], None]:
        """Start the process that ranks are forked from, unless it runs already: it has much to import."""
        if self.name_modules is None:
            self.name_modules = self.stack.enter_context(forking())
        return self.name_modules

    def train(self) -> None:
        """Train all that is fresh, each on two processes; of each class one runs without a stop, too."""
        if not self.fresh:
            return
        order = [*self.references, *(each for each in self.fresh if each not in self.references)]
        name_modules = self.begin_forking()
        with self.stage("train"), closing(self.try_all(order, self.references)) as results:
            name_modules(imports_of(self.sources.values()))
            lay_ready(self.sources.values())
            for done, (combination, trained) in enumerate(results, start=1):
                self.take(combination, trained)
                self.check.progress("train", done, len(order))
        self.divide_time_of_training()

    def try_all(
        self, combinations: Sequence[Combination], references: Sequence[Combination] = (), prefix: str = ""
    ) -> Generator[tuple[Combination, Trained], None, None]:
        """Try combinations out, some at a time, and give what that showed as it comes."""
        [uses] = train_all([first_uses({each.logger for each in combinations}, self.folder / "first-use")], 1)
        trials = [
            Trial(each, self.place(each), each in references, uses.get(each.logger), prefix) for each in combinations
        ]
        at_once = 2 * self.workers.processes  # ranks wait for each other now and then
        yield from train_all(map(named, trials), at_once)

    def take(self, combination: Combination, trained: Trained) -> None:
        """Take over what the runs of a combination have shown."""
        self.trained[combination] = trained
        outcome = self.outcomes[combination]
        outcome.seconds |= trained.seconds
        for stage, text in trained.failures:
            self.fail(combination, stage, text)
        if outcome.passed and not self.check.keep:
            shutil.rmtree(self.place(combination) / "run", ignore_errors=True)

    def divide_time_of_training(self) -> None:
        """Runs of both stages go on side by side: give each its share of the whole."""
        shares = {
            stage: sum(self.outcomes[each].seconds.get(stage, 0.0) for each in self.fresh)
            for stage in ("train", "resume")
        }
        whole = self.verdict.stages["train"]
        for stage, share in shares.items():
            self.verdict.stages[stage] = whole * share / max(sum(shares.values()), 1e-9)

    def compare(self) -> None:
        """Compare every run over a stop with one without, of the same class."""
        with self.stage("agree"):
            self.compare_classes()

    def compare_classes(self) -> None:
        """Compare within each class."""
        for members in self.classes().values():
            sound = [each for each in members if each in self.trained and not self.trained[each].failures]
            reference = next((each for each in sound if self.trained[each].whole), None)
            for combination in sound:
                if reference is None:
                    self.fail(combination, "resume", "no combination of its class ran to its end without a stop")
                    continue
                others = {combination, reference} if self.trained[combination].whole else {reference}
                for other in others:
                    own = other == combination
                    wrong = compare(self.trained[combination], self.trained[other], own, other.name)
                    if wrong:
                        self.fail(combination, *wrong)

    def train_really(self) -> None:
        """Train a covering set of what passed by its real launchers, and compare it with what forked ranks did."""
        sound = [each for each, outcome in self.outcomes.items() if outcome.passed]
        chosen = covering(sound, min(2, len(self.verdict.questions))) if sound else []
        self.write_missing(chosen)
        with self.stage("real"), launchers_ready({each.launcher for each in chosen}, self.folder) as env:
            forked = self.train_on_all_data(chosen)
            for done, combination in enumerate(chosen, start=1):
                trial = Trial(combination, self.place(combination), reference=False)
                started = time.perf_counter()
                command = self.command_of(combination)
                wrong = compare_with_launcher(trial, command, env, forked[combination])
                self.outcomes[combination].seconds["real"] = time.perf_counter() - started
                if wrong:
                    self.fail(combination, "real", wrong)
                self.check.progress("real", done, len(chosen))

    def train_on_all_data(self, combinations: Sequence[Combination]) -> dict[Combination, Trained]:
        """Train by forked ranks what real launchers, which know nothing of excerpts, train as well."""
        with forking(all_data=True) as name_modules:
            name_modules(imports_of(source_files(self.project(each)) for each in combinations))
            return dict(self.try_all(combinations, prefix="all-data-"))

    def command_of(self, combination: Combination) -> str:
        """The command that starts two processes, as copier.yml computes it for the README."""
        nowhere = self.folder / "nowhere"
        answers = run_copier(nowhere, dict(combination.answers), self.check.template, quiet=True, pretend=True)
        return str(answers["train_on_two"])

    def judge(self) -> list[Outcome]:
        """Give all outcomes, and remember those that passed."""
        for combination, outcome in self.outcomes.items():
            # Stages that look at many combinations together take no time for one of them.
            for stage in ("render", *(["agree", *STATIC, "train", "resume"] if combination in self.trained else [])):
                outcome.seconds.setdefault(stage, 0.0)
            if combination in self.trained:
                outcome.weights = self.trained[combination].parts.get("model", "")
                outcome.notes += self.trained[combination].notes
            if outcome.passed and not outcome.cached and self.check.cache:
                self.check.cache.write("passed", self.key(self.digests[combination]), asdict(self.trained[combination]))
        return list(self.outcomes.values())

    def tidy(self) -> None:
        """Take away what nobody wants to look at."""
        for name in ("template", "types", "first-use"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if not self.check.keep:
            for outcome in self.outcomes.values():
                if outcome.passed:
                    shutil.rmtree(self.place(outcome.combination), ignore_errors=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        if self.folder.exists() and self.folder != self.left_at:
            shutil.move(self.folder, self.left_at)


def timed(work: Callable[..., Complaints], *arguments: Any) -> tuple[Complaints, float]:
    """Do something, and say how long it took (seconds)."""
    started = time.perf_counter()
    return work(*arguments), time.perf_counter() - started


def named(trial: Trial) -> Job[tuple[Combination, Trained]]:
    """Try a combination out, and say which it was."""
    trained = yield from try_out(trial)
    return trial.combination, trained
