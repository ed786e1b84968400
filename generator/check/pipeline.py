"""Checks many combinations: renders, reads, trains and compares them, and remembers those that passed."""

import time
from contextlib import ExitStack

from generator.answers.combinations import shaping_questions
from generator.check.cache_key import versions
from generator.check.reading import TOOLS, Reading
from generator.check.rendering import Projects
from generator.check.results import Verdict
from generator.check.training import compare_classes, train, train_really
from generator.check.work import Order, Work
from generator.render.scratch import working_folder
from generator.render.workers import Workers

ROOM_OF_EACH = 4 * 2**20  # bytes: a project and its runs


def check(order: Order, workers: Workers) -> Verdict:
    """Check. Whatever ends it early leaves no process of its own behind, and no folder that it has made."""
    started = time.perf_counter()
    questions = shaping_questions(order.template)
    verdict = Verdict([], questions, selection=order.selection, launchers=order.launchers, versions=versions())
    with working_folder(len(order.combinations) * ROOM_OF_EACH) as folder, ExitStack() as stack:
        work = Work(order, verdict, folder, workers, stack)
        with work.stage("render"):
            projects = Projects(work)
            projects.render()
        reading = Reading(work)
        train(work, reading)
        reading.take()
        compare_classes(work)
        if order.launchers == "real":
            train_really(work, projects)
        conclude(work, projects)
        verdict.kept = work.tidy()
    verdict.wall = time.perf_counter() - started
    return verdict


def conclude(work: Work, projects: Projects) -> None:
    """Complete all outcomes, and remember those that passed."""
    for combination, outcome in work.outcomes.items():
        trained = work.trained.get(combination)
        # Stages that look at many combinations together take no time for one of them.
        for stage in ("render", *(["agree", *TOOLS, "train", "resume"] if trained else [])):
            outcome.seconds.setdefault(stage, 0.0)
        if trained:
            outcome.weights = trained.parts.get("model", "")
            outcome.notes += trained.notes
        projects.remember(outcome)
    work.verdict.outcomes = [*work.outcomes.values()]
