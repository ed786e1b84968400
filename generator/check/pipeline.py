"""Checks many combinations: renders, reads, trains and compares them, and remembers those that passed."""

import shutil
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import Any

from generator.answers.combinations import Combination, covering, greedy_cover
from generator.check.cache_key import file_key, verdict_key
from generator.check.launchers import compare_with_launcher, launchers_ready
from generator.check.results import Verdict
from generator.check.static import Complaints, SourceFile, check_format, check_lint, check_types, distinct, source_files
from generator.check.train.forking import forking, train_all
from generator.check.train.judgement import Trained
from generator.check.train.modules import imports_of, lay_ready
from generator.check.train.samples import samples_of
from generator.check.train.trial import Trial, compare, first_uses, try_out
from generator.check.work import Order, Work
from generator.render.cache import PARTIALS, Cache, Remembered
from generator.render.project import run_copier
from generator.render.scratch import scratch_folder
from generator.render.snapshot import PARTS, take_snapshot
from generator.render.workers import Workers

TOOLS: dict[str, Callable[..., Complaints]] = {"format": check_format, "lint": check_lint, "types": check_types}
# By the stage: the files that a tool reads, and what it will say of them, with the time that it took (seconds).
Reading = dict[str, tuple[list[SourceFile], Future[tuple[Complaints, float]]]]
ROOM_OF_EACH = 4 * 2**20  # bytes: a project and its runs


def check(order: Order, workers: Workers) -> Verdict:
    """Check. Whatever ends it early leaves no process of its own behind, and no folder that it has made."""
    started = time.perf_counter()
    with scratch_folder(len(order.combinations) * ROOM_OF_EACH, keep=True) as folder, ExitStack() as stack:
        work = Work(order, folder, workers, stack)
        with work.stage("render"):
            render(work)
        reading = begin_reading(work)
        train(work)
        take_complaints(work, reading)
        compare_classes(work)
        take_over(work)
        if order.launchers == "real":
            train_really(work)
        conclude(work)
        work.verdict.kept = work.tidy()
    work.verdict.wall = time.perf_counter() - started
    return work.verdict


def render(work: Work) -> None:
    """Write all projects, but those whose tree is known and has passed an earlier check: that is taken over."""
    order = work.order
    take_snapshot(work.snapshot, order.template)
    work.known_trees = Remembered(order.cache, "hashes", work.snapshot, [part for part in PARTS if part != PARTIALS])
    trees = {} if order.keep else {each: work.known_trees.read(each.name) for each in order.combinations}
    for combination, known in trees.items():
        if known and recorded(work, known[0]):
            work.digests[combination], work.code[combination], work.own[combination] = known
    unknown = [each for each in order.combinations if each not in work.digests]
    if unknown:
        work.begin_forking()
    write(work, unknown)
    for combination, digest in work.digests.items():
        if known := recorded(work, digest):
            work.trained[combination] = Trained(**known)
            work.outcomes[combination].cached = True
        else:
            work.fresh.append(combination)
    work.chosen = one_of_each_code(work)
    for members in work.classes():
        # One of a class is to run without a stop, too, unless this is known of one of them.
        if not any(each in work.trained and work.trained[each].whole for each in members):
            first = next((each for each in [*work.chosen, *work.fresh] if each in members), members[0])
            if first not in work.fresh:  # known, but not without a stop
                del work.trained[first]
                work.outcomes[first].cached = False
                work.fresh.append(first)
                write(work, [first])
            if first not in work.chosen:
                work.chosen.append(first)
            work.references.append(first)
    covered = {work.owners_part(each) for each in [*work.trained, *work.chosen]}
    for combination in work.fresh:
        if (part := work.owners_part(combination)) not in covered:
            covered.add(part)
            work.chosen.append(combination)


def one_of_each_code(work: Work) -> list[Combination]:
    """Choose what to train of what is fresh: of all projects that differ in their owner's files alone, one.

    Which one changes from code to code, so that all of these files are trained, too, beside many others.
    """
    known = {work.code[each] for each in work.trained}
    alike: dict[str, list[Combination]] = {}
    for combination in work.fresh:
        if (code := work.code[combination]) not in known:
            alike.setdefault(code, []).append(combination)
    return [members[number % len(members)] for number, members in enumerate(alike.values())]


def recorded(work: Work, digest: str) -> Any:
    """Return what an earlier check found out about a tree, if it passed."""
    return work.order.cache.read("passed", verdict_key(digest)) if work.order.cache else None


def write(work: Work, combinations: Iterable[Combination]) -> None:
    """Let Copier write those of the projects that are not there yet."""
    missing = [each for each in combinations if not work.project(each).exists()]
    jobs = {each: work.workers.render(work.snapshot, each, work.project(each)) for each in missing}
    for done, (combination, job) in enumerate(jobs.items(), start=1):
        try:
            rendered = job.result()
        except Exception as error:  # Copier lets the errors of Jinja, YAML and others through
            work.fail(combination, "render", f"{type(error).__name__}: {error}")
        else:
            hashes = rendered.digest, rendered.code, rendered.own
            work.digests[combination], work.code[combination], work.own[combination] = hashes
            work.known_trees.write(combination.name, hashes, rendered.partials)
        work.order.progress("render", done, len(jobs))


def begin_reading(work: Work) -> Reading:
    """Let the tools read, in other processes and beside the training, the files that they have not read before."""
    work.sources = {each: source_files(work.project(each)) for each in work.fresh}
    cache, reading = work.order.cache, {}
    files = distinct(file for own in work.sources.values() for file in own)
    for stage, tool in TOOLS.items():
        unread = [file for file in files if not (cache and cache.read("files", file_key(stage, file)))]
        arguments: tuple[Any, ...] = (unread,)
        if stage == "types":  # mypy reads whole projects: as few as have all of the files
            having = {work.project(each): {file.key for file in own} for each, own in work.sources.items()}
            cover = greedy_cover(having, {file.key for file in unread})
            arguments = (cover, work.folder / "types", (cache or Cache()).folder / "mypy")
        if unread:
            reading[stage] = (unread, work.workers.submit(timed, tool, *arguments))
        else:
            work.verdict.stages[stage] = 0.0
    return reading


def timed(work: Callable[..., Complaints], *arguments: Any) -> tuple[Complaints, float]:
    """Do something, and return how long it took, too (seconds)."""
    started = time.perf_counter()
    return work(*arguments), time.perf_counter() - started


def take_complaints(work: Work, reading: Reading) -> None:
    """Take what the tools say, for every combination that has the file."""
    for stage, (unread, job) in reading.items():
        complaints, work.verdict.stages[stage] = job.result()
        for combination, files in work.sources.items():
            for file in files:
                if file.key in complaints:
                    work.fail(combination, stage, complaints[file.key])
        for file in unread:
            if work.order.cache and file.key not in complaints:
                work.order.cache.write("files", file_key(stage, file), str(file.path))
        work.order.progress(stage, 1, 1)


def train(work: Work) -> None:
    """Train what was chosen, each on two processes; of each class one runs without a stop, too."""
    if not work.chosen:
        return
    order = [*work.references, *(each for each in work.chosen if each not in work.references)]
    name_modules = work.begin_forking()
    with work.stage("train"), closing(try_all(work, order, work.references)) as results:
        sources = [work.sources[each] for each in order]
        name_modules(imports_of(sources))
        lay_ready(sources)
        for done, (trial, trained) in enumerate(results, start=1):
            work.trained[trial.combination] = trained
            outcome = work.outcomes[trial.combination]
            outcome.seconds |= trained.seconds
            for stage, text in trained.failures:
                work.fail(trial.combination, stage, text)
            if outcome.passed and not work.order.keep:
                shutil.rmtree(trial.folder / "run", ignore_errors=True)
            work.order.progress("train", done, len(order))
    # Runs of both stages go on side by side: each gets its share of the whole.
    whole, trained_now = work.verdict.stages["train"], [work.outcomes[each] for each in order]
    spent = {stage: sum(each.seconds.get(stage, 0.0) for each in trained_now) for stage in ("train", "resume")}
    for stage, seconds in spent.items():
        work.verdict.stages[stage] = whole * seconds / max(sum(spent.values()), 1e-9)


def try_all(
    work: Work, combinations: Sequence[Combination], references: Sequence[Combination] = (), prefix: str = ""
) -> Generator[tuple[Trial, Trained], None, None]:
    """Try combinations out, some at a time, and yield what that showed as it comes."""
    uses = first_uses({each.logger for each in combinations}, work.folder / "first-use")
    samples = samples_of({each.task for each in combinations}, work.folder / "samples")
    trials = [
        Trial(each, work.place(each), each in references, uses.get(each.logger), prefix, samples.get(each.task))
        for each in combinations
    ]
    yield from train_all(try_out, trials, 2 * work.workers.processes)  # ranks wait for each other now and then


def compare_classes(work: Work) -> None:
    """Compare every run over a stop with one without, of the same class, and with its own if it has one."""
    with work.stage("agree"):
        for members in work.classes():
            trained = {each: work.trained[each] for each in members if each in work.trained}
            sound = {each: found for each, found in trained.items() if not found.failures}
            whole = [each for each, trained in sound.items() if trained.whole]
            for each in sound if not whole else ():
                work.fail(each, "resume", "no combination of its class ran to its end without a stop")
            pairs = [(each, reference) for reference in whole[:1] for each in sound]
            pairs += [(each, each) for each in whole[1:]]
            for one, other in pairs:
                if wrong := compare(sound[one], sound[other], one == other, other.name):
                    work.fail(one, *wrong)


def take_over(work: Work) -> None:
    """Say of the fresh combinations that were not trained what was found of the same files in two that were."""
    by_code = {work.code[each]: each for each in work.trained}
    by_own = {work.owners_part(each): each for each in work.trained}
    for combination in (each for each in work.fresh if each not in work.trained):
        parts = [by_code[work.code[combination]], by_own[work.owners_part(combination)]]
        for part, has in zip(parts, ("code of the template", "files of the owner"), strict=True):
            if any(failure.stage in ("train", "resume", "agree") for failure in work.outcomes[part].failures):
                work.fail(combination, "train", f"its {has} failed in {part.name}")
        work.outcomes[combination].trained_as = [part.name for part in parts]
        work.trained[combination] = replace(work.trained[parts[1]], whole={}, seconds={}, notes=[], failures=[])


def train_really(work: Work) -> None:
    """Train a covering set of what passed by its real launchers, and compare it with what forked ranks did."""
    sound = [each for each, outcome in work.outcomes.items() if outcome.passed]
    chosen = covering(sound, min(2, len(sound[0].answers))) if sound else []
    write(work, chosen)
    with work.stage("real"), launchers_ready({each.launcher for each in chosen}, work.folder) as env:
        with forking(all_data=True) as name_modules:  # real launchers know nothing of excerpts
            name_modules(imports_of(source_files(work.project(each)) for each in chosen))
            forked = {trial.combination: trained for trial, trained in try_all(work, chosen, prefix="all-data-")}
        for done, combination in enumerate(chosen, start=1):
            started = time.perf_counter()
            nowhere, asked = work.folder / "nowhere", dict(combination.answers)
            answers = run_copier(nowhere, asked, work.order.template, pretend=True)
            command = str(answers["train_on_two"])  # as copier.yml computes it for the README
            samples = samples_of({combination.task}, work.folder / "samples").get(combination.task)
            trial = Trial(combination, work.place(combination), reference=False, samples=samples)
            wrong = compare_with_launcher(trial, command, env, forked[combination])
            work.outcomes[combination].seconds["real"] = time.perf_counter() - started
            if wrong:
                work.fail(combination, "real", wrong)
            work.order.progress("real", done, len(chosen))


def conclude(work: Work) -> None:
    """Complete all outcomes, and remember those that passed."""
    for combination, outcome in work.outcomes.items():
        trained = work.trained.get(combination)
        # Stages that look at many combinations together take no time for one of them.
        for stage in ("render", *(["agree", *TOOLS, "train", "resume"] if trained else [])):
            outcome.seconds.setdefault(stage, 0.0)
        if trained:
            outcome.weights = trained.parts.get("model", "")
            outcome.notes += trained.notes
        if trained and outcome.passed and not outcome.cached and work.order.cache:
            work.order.cache.write("passed", verdict_key(work.digests[combination]), asdict(trained))
