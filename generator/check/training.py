"""The stages of a check that run code: every fresh project is trained, stopped, resumed and compared with others."""

import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import closing

from generator.answers.combinations import Combination
from generator.answers.selection import covering
from generator.check.launchers.real import compare_with_launcher, launchers_ready
from generator.check.reading import Reading
from generator.check.rendering import Projects
from generator.check.static import source_files
from generator.check.train.forking import Job, forking, train_all
from generator.check.train.modules import imports_of, lay_ready
from generator.check.train.trial import Trained, Trial, compare, first_uses, try_out
from generator.check.work import Work
from generator.render.project import run_copier


def train(work: Work, reading: Reading) -> None:
    """Train all that is fresh, each on two processes; of each class one runs without a stop, too."""
    if not work.fresh:
        return
    order = [*work.references, *(each for each in work.fresh if each not in work.references)]
    name_modules = work.begin_forking()
    with work.stage("train"), closing(try_all(work, order, work.references)) as results:
        name_modules(imports_of(reading.sources.values()))
        lay_ready(reading.sources.values())
        for done, (combination, trained) in enumerate(results, start=1):
            take(work, combination, trained)
            work.order.progress("train", done, len(order))
    divide_time_of_training(work)


def try_all(
    work: Work, combinations: Sequence[Combination], references: Sequence[Combination] = (), prefix: str = ""
) -> Generator[tuple[Combination, Trained], None, None]:
    """Try combinations out, some at a time, and yield what that showed as it comes."""
    [uses] = train_all([first_uses({each.logger for each in combinations}, work.folder / "first-use")], 1)
    trials = [Trial(each, work.place(each), each in references, uses.get(each.logger), prefix) for each in combinations]
    at_once = 2 * work.workers.processes  # ranks wait for each other now and then
    yield from train_all(map(named, trials), at_once)


def named(trial: Trial) -> Job[tuple[Combination, Trained]]:
    """Try a combination out, and return which it was, too."""
    trained = yield from try_out(trial)
    return trial.combination, trained


def take(work: Work, combination: Combination, trained: Trained) -> None:
    """Take over what the runs of a combination have shown."""
    work.trained[combination] = trained
    outcome = work.outcomes[combination]
    outcome.seconds |= trained.seconds
    for stage, text in trained.failures:
        work.fail(combination, stage, text)
    if outcome.passed and not work.order.keep:
        shutil.rmtree(work.place(combination) / "run", ignore_errors=True)


def divide_time_of_training(work: Work) -> None:
    """Runs of both stages go on side by side: give each its share of the whole."""
    shares = {
        stage: sum(work.outcomes[each].seconds.get(stage, 0.0) for each in work.fresh) for stage in ("train", "resume")
    }
    whole = work.verdict.stages["train"]
    for stage, share in shares.items():
        work.verdict.stages[stage] = whole * share / max(sum(shares.values()), 1e-9)


def compare_classes(work: Work) -> None:
    """Compare every run over a stop with one without, of the same class."""
    with work.stage("agree"):
        for members in work.classes().values():
            sound = [each for each in members if each in work.trained and not work.trained[each].failures]
            reference = next((each for each in sound if work.trained[each].whole), None)
            for combination in sound:
                compare_within_class(work, combination, reference)


def compare_within_class(work: Work, combination: Combination, reference: Combination | None) -> None:
    """Compare one with the reference of its class, and with its own run without a stop if it has one."""
    if reference is None:
        work.fail(combination, "resume", "no combination of its class ran to its end without a stop")
        return
    others = {combination, reference} if work.trained[combination].whole else {reference}
    for other in others:
        wrong = compare(work.trained[combination], work.trained[other], other == combination, other.name)
        if wrong:
            work.fail(combination, *wrong)


def train_really(work: Work, projects: Projects) -> None:
    """Train a covering set of what passed by its real launchers, and compare it with what forked ranks did."""
    sound = [each for each, outcome in work.outcomes.items() if outcome.passed]
    chosen = covering(sound, min(2, len(work.verdict.questions))) if sound else []
    projects.write_missing(chosen)
    with work.stage("real"), launchers_ready({each.launcher for each in chosen}, work.folder) as env:
        forked = train_on_all_data(work, chosen)
        for done, combination in enumerate(chosen, start=1):
            trial = Trial(combination, work.place(combination), reference=False)
            started = time.perf_counter()
            wrong = compare_with_launcher(trial, command_of(work, combination), env, forked[combination])
            work.outcomes[combination].seconds["real"] = time.perf_counter() - started
            if wrong:
                work.fail(combination, "real", wrong)
            work.order.progress("real", done, len(chosen))


def train_on_all_data(work: Work, combinations: Sequence[Combination]) -> dict[Combination, Trained]:
    """Train by forked ranks what real launchers, which know nothing of excerpts, train as well."""
    with forking(all_data=True) as name_modules:
        name_modules(imports_of(source_files(work.project(each)) for each in combinations))
        return dict(try_all(work, combinations, prefix="all-data-"))


def command_of(work: Work, combination: Combination) -> str:
    """Return the command that starts two processes, as copier.yml computes it for the README."""
    nowhere = work.folder / "nowhere"
    answers = run_copier(nowhere, dict(combination.answers), work.order.template, quiet=True, pretend=True)
    return str(answers["train_on_two"])
