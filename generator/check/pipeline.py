"""Checks many combinations: renders, reads, trains and compares them, and remembers those that passed."""

import itertools
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import Any

from generator.answers.combinations import Combination, covering
from generator.check import static
from generator.check.launchers import compare_with_launcher, launchers_ready
from generator.check.results import Verdict
from generator.check.state import CheckOptions, CheckState, file_key, verdict_key
from generator.check.train.forking import forking, train_all
from generator.check.train.samples import samples_of
from generator.check.train.training_case import TrainingCase, compare, first_uses, run_case
from generator.check.train.verification import TrainingResult
from generator.render.cache import PARTIALS, Cache, Remembered
from generator.render.project import run_copier
from generator.render.scratch import scratch_folder
from generator.render.snapshot import PARTS, take_snapshot
from generator.render.workers import Rendered, Workers

Tool = Callable[..., static.Complaints]
TOOLS: dict[str, Tool] = {"format": static.check_format, "lint": static.check_lint, "types": static.check_types}
# By the stage: the files that a tool reads, and what it will say of them, with the time that it took (seconds).
Reading = dict[str, tuple[list[static.SourceFile], Future[tuple[static.Complaints, float]]]]
ROOM_OF_EACH = 4 * 2**20  # bytes: a project and its runs


def check(options: CheckOptions, workers: Workers) -> Verdict:
    """Check the combinations, and return the verdict. An error or a signal leaves no process and no folder behind."""
    started = time.perf_counter()
    with scratch_folder(len(options.combinations) * ROOM_OF_EACH, keep=True) as folder, ExitStack() as stack:
        state = CheckState(options, folder, workers, stack)
        with state.stage("render"):
            render(state)
        reading = begin_reading(state)
        train(state)
        take_complaints(state, reading)
        compare_classes(state)
        take_over(state)
        if options.launchers == "real":
            train_really(state)
        conclude(state)
        state.verdict.kept = state.tidy()
    state.verdict.wall = time.perf_counter() - started
    return state.verdict


def render(state: CheckState) -> None:
    """Write all projects, and take over the results of those whose tree passed an earlier check."""
    options = state.options
    take_snapshot(state.snapshot, options.template)
    parts = [part for part in PARTS if part != PARTIALS]
    state.known_trees = Remembered(options.cache, "hashes", state.snapshot, parts)
    trees = {} if options.keep else {each: state.known_trees.read(each.name) for each in options.combinations}
    for combination, known in trees.items():
        if known and recorded(state, known[0]):
            digest, code, own = known
            state.rendered[combination] = Rendered(digest, code, own, frozenset())
    unknown = [each for each in options.combinations if each not in state.rendered]
    if unknown:
        state.begin_forking()
    write(state, unknown)
    for combination, rendered in state.rendered.items():
        if known := recorded(state, rendered.digest):
            state.trained[combination] = TrainingResult(**known)
            state.outcomes[combination].cached = True
        else:
            state.fresh.append(combination)
    state.chosen = one_of_each_code(state)
    for members in state.classes():
        # One member of each class also runs without an interruption, unless the cache has such a run.
        if not any(each in state.trained and state.trained[each].whole for each in members):
            first = next((each for each in [*state.chosen, *state.fresh] if each in members), members[0])
            if first not in state.fresh:  # known, but only with an interruption
                del state.trained[first]
                state.outcomes[first].cached = False
                state.fresh.append(first)
                write(state, [first])
            if first not in state.chosen:
                state.chosen.append(first)
            state.references.append(first)
    covered = {state.owners_part(each) for each in [*state.trained, *state.chosen]}
    for combination in state.fresh:
        if (part := state.owners_part(combination)) not in covered:
            covered.add(part)
            state.chosen.append(combination)


def one_of_each_code(state: CheckState) -> list[Combination]:
    """Choose what to train: one of the projects that differ only in their owner's files, rotating through the files."""
    known = {state.rendered[each].code for each in state.trained}
    alike: dict[str, list[Combination]] = {}
    for combination in state.fresh:
        if (code := state.rendered[combination].code) not in known:
            alike.setdefault(code, []).append(combination)
    return [members[number % len(members)] for number, members in enumerate(alike.values())]


def recorded(state: CheckState, digest: str) -> Any:
    return state.options.cache.read("passed", verdict_key(digest)) if state.options.cache else None


def write(state: CheckState, combinations: Iterable[Combination]) -> None:
    """Let Copier write the projects that are missing."""
    missing = [each for each in combinations if not state.project(each).exists()]
    jobs = {each: state.workers.render(state.snapshot, each, state.project(each)) for each in missing}
    for done, (combination, job) in enumerate(jobs.items(), start=1):
        try:
            rendered = job.result()
        except Exception as error:  # Copier passes on errors of Jinja, YAML and others
            state.fail(combination, "render", f"{type(error).__name__}: {error}")
        else:
            state.rendered[combination] = rendered
            hashes = rendered.digest, rendered.code, rendered.own
            state.known_trees.write(combination.name, hashes, rendered.partials)
        state.options.progress("render", done, len(jobs))


def begin_reading(state: CheckState) -> Reading:
    """Start the tools on files that they have not read before, in other processes, while the training runs."""
    state.sources = {each: static.source_files(state.project(each)) for each in state.fresh}
    cache, reading = state.options.cache, {}
    files = static.distinct(file for own in state.sources.values() for file in own)
    for stage, tool in TOOLS.items():
        unread = [file for file in files if not (cache and cache.read("files", file_key(stage, file)))]
        arguments: tuple[Any, ...] = (unread,)
        if stage == "types":  # mypy reads whole projects: each file in one, and each two answers
            having = {
                state.project(each): {file.key for file in own} | {*itertools.combinations(each.answers, 2)}
                for each, own in state.sources.items()
            }
            wanted = {file.key for file in unread}.union(
                *(itertools.combinations(each.answers, 2) for each in state.fresh)
            )
            arguments = (having, wanted, state.folder / "types", (cache or Cache()).folder / "mypy")
        if unread:
            reading[stage] = (unread, state.workers.submit(timed, tool, *arguments))
        else:
            state.verdict.stages[stage] = 0.0
    return reading


def timed(function: Tool, *arguments: Any) -> tuple[static.Complaints, float]:
    started = time.perf_counter()
    return function(*arguments), time.perf_counter() - started


def take_complaints(state: CheckState, reading: Reading) -> None:
    """Add what the tools report to every combination that has the file."""
    for stage, (unread, job) in reading.items():
        complaints, state.verdict.stages[stage] = job.result()
        for combination, files in state.sources.items():
            for file in files:
                if file.key in complaints:
                    state.fail(combination, stage, complaints[file.key])
        for file in unread:
            if state.options.cache and file.key not in complaints:
                state.options.cache.write("files", file_key(stage, file), str(file.path))
        state.options.progress(stage, 1, 1)


def train(state: CheckState) -> None:
    """Train the chosen projects on two processes each; one of each class also runs without an interruption."""
    if not state.chosen:
        return
    order = [*state.references, *(each for each in state.chosen if each not in state.references)]
    name_modules = state.begin_forking()
    with state.stage("train"):
        sources = [state.sources[each] for each in order]
        name_modules(static.imports_of(sources))
        take_results(state, order)
        again = second_tries(state)
        take_results(state, again)
        order += again
    # Runs of both stages overlap: divide the wall time by their shares.
    whole, trained_now = state.verdict.stages["train"], [state.outcomes[each] for each in order]
    spent = {stage: sum(each.seconds.get(stage, 0.0) for each in trained_now) for stage in ("train", "resume")}
    for stage, seconds in spent.items():
        state.verdict.stages[stage] = whole * seconds / max(sum(spent.values()), 1e-9)


def take_results(state: CheckState, combinations: Sequence[Combination]) -> None:
    with closing(try_all(state, combinations, state.references)) as results:
        for done, (case, trained) in enumerate(results, start=1):
            state.trained[case.combination] = trained
            outcome = state.outcomes[case.combination]
            outcome.seconds |= trained.seconds
            for stage, text in trained.failures:
                state.fail(case.combination, stage, text)
            if outcome.passed and not state.options.keep:
                shutil.rmtree(case.folder / "run", ignore_errors=True)
            state.options.progress("train", done, len(combinations))


def second_tries(state: CheckState) -> list[Combination]:
    """Choose projects that show what is at fault where code of the template and files of the owner failed together."""
    sound = [each for each in state.trained if not state.fails_in_training(each)]
    codes = {state.rendered[each].code for each in sound}
    parts = {state.owners_part(each) for each in sound}
    chosen: dict[Any, Combination] = {}
    for combination in (each for each in state.fresh if each not in state.trained):
        code, part = state.rendered[combination].code, state.owners_part(combination)
        if (code in codes) != (part in parts):  # one of the two is sound, so this tries the other
            chosen.setdefault(part if code in codes else code, combination)
    return [*chosen.values()]


def try_all(
    state: CheckState, combinations: Sequence[Combination], references: Sequence[Combination] = (), prefix: str = ""
) -> Generator[tuple[TrainingCase, TrainingResult], None, None]:
    """Try combinations out, some at a time, and yield what that showed as it comes."""
    uses = first_uses({each.answer("logging") for each in combinations}, state.folder / "first-use")
    samples = samples_of({each.answer("task") for each in combinations}, state.folder / "samples")
    cases = []
    for each in combinations:
        use, data = uses.get(each.answer("logging")), samples.get(each.answer("task"))
        cases.append(TrainingCase(each, state.place(each), each in references, use, prefix, data))
    yield from train_all(run_case, cases, 2 * state.workers.processes)  # ranks wait for each other now and then


def compare_classes(state: CheckState) -> None:
    """Compare every interrupted run with an uninterrupted run of its class, and with its own if it has one."""
    with state.stage("agree"):
        for members in state.classes():
            trained = {each: state.trained[each] for each in members if each in state.trained}
            sound = {each: found for each, found in trained.items() if not found.failures}
            whole = [each for each, trained in sound.items() if trained.whole]
            for each in sound if not whole else ():
                state.fail(each, "resume", "no combination of its class ran to its end without a stop")
            pairs = [(each, reference) for reference in whole[:1] for each in sound]
            pairs += [(each, each) for each in whole[1:]]
            for one, other in pairs:
                if wrong := compare(sound[one], sound[other], one == other, other.name):
                    state.fail(one, *wrong)


def take_over(state: CheckState) -> None:
    """Take over results for fresh combinations that were not trained, from two trained ones with the same files."""
    sound_last = sorted(state.trained, key=state.fails_in_training, reverse=True)
    by_code = {state.rendered[each].code: each for each in sound_last}
    by_own = {state.owners_part(each): each for each in sound_last}
    for combination in (each for each in state.fresh if each not in state.trained):
        parts = [by_code[state.rendered[combination].code], by_own[state.owners_part(combination)]]
        for part, has in zip(parts, ("code of the template", "files of the owner"), strict=True):
            if state.fails_in_training(part):
                state.fail(combination, "train", f"its {has} failed in {part.name}")
        state.outcomes[combination].trained_as = [part.name for part in parts]
        state.trained[combination] = replace(state.trained[parts[1]], whole={}, seconds={}, notes=[], failures=[])


def train_really(state: CheckState) -> None:
    """Train a covering set of the passed combinations by their real launchers, and compare it with forked ranks."""
    sound = [each for each, outcome in state.outcomes.items() if outcome.passed]
    chosen = covering(sound, min(2, len(sound[0].answers))) if sound else []
    write(state, chosen)
    with state.stage("real"), launchers_ready({each.answer("launcher") for each in chosen}, state.folder) as env:
        with forking(all_data=True) as name_modules:  # real launchers train on all data
            name_modules(static.imports_of(static.source_files(state.project(each)) for each in chosen))
            forked = {case.combination: trained for case, trained in try_all(state, chosen, prefix="all-data-")}
        for done, combination in enumerate(chosen, start=1):
            started = time.perf_counter()
            nowhere, asked = state.folder / "nowhere", dict(combination.answers)
            answers = run_copier(nowhere, asked, state.options.template, pretend=True)
            command = str(answers["train_on_two"])  # as copier.yml computes it for the README
            samples = samples_of({combination.answer("task")}, state.folder / "samples").get(combination.answer("task"))
            case = TrainingCase(combination, state.place(combination), reference=False, samples=samples)
            wrong = compare_with_launcher(case, command, env, forked[combination])
            state.outcomes[combination].seconds["real"] = time.perf_counter() - started
            if wrong:
                state.fail(combination, "real", wrong)
            state.options.progress("real", done, len(chosen))


def conclude(state: CheckState) -> None:
    for combination, outcome in state.outcomes.items():
        trained = state.trained.get(combination)
        # A stage that handles many combinations together counts no time for one of them.
        for stage in ("render", *(["agree", *TOOLS, "train", "resume"] if trained else [])):
            outcome.seconds.setdefault(stage, 0.0)
        if trained:
            outcome.weights = trained.parts.get("model", "")
            outcome.notes += trained.notes
        if trained and outcome.passed and not outcome.cached and state.options.cache:
            state.options.cache.write("passed", verdict_key(state.rendered[combination].digest), asdict(trained))
