"""The first stage of a check: Copier writes the projects, and what passed an earlier check is taken over."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from generator.answers.combinations import Combination
from generator.check.cache_key import verdict_key
from generator.check.results import Outcome
from generator.check.train.trial import Trained
from generator.check.work import Work
from generator.render.cache import PARTIALS, Remembered
from generator.render.snapshot import PARTS, take_snapshot


class Projects:
    """The projects of a check, and what is known of their trees."""

    def __init__(self, work: Work) -> None:
        """Take a snapshot of the template, from which all of them are written."""
        self.work = work
        self.cache = work.order.cache
        self.snapshot = take_snapshot(work.folder / "template", work.order.template)
        self.known_trees = Remembered(self.cache, "trees", self.snapshot, [part for part in PARTS if part != PARTIALS])

    def render(self) -> None:
        """Write all projects, but those whose tree is known and has passed an earlier check."""
        work = self.work
        trees = {} if work.order.keep else {each: self.known_trees.read(each.name) for each in work.order.combinations}
        work.digests = {each: digest for each, digest in trees.items() if digest and self.recorded(digest)}
        unknown = [each for each in work.order.combinations if each not in work.digests]
        if unknown:
            work.begin_forking()
        self.write(unknown)
        self.recall()

    def write(self, combinations: Sequence[Combination]) -> None:
        """Let Copier write some projects."""
        work = self.work
        jobs = {each: work.workers.render(self.snapshot, each, work.project(each)) for each in combinations}
        for done, (combination, job) in enumerate(jobs.items(), start=1):
            try:
                rendered = job.result()
            except Exception as error:  # Copier lets the errors of Jinja, YAML and others through
                work.fail(combination, "render", f"{type(error).__name__}: {error}")
            else:
                work.digests[combination] = rendered.digest
                self.known_trees.write(combination.name, rendered.digest, rendered.partials)
            work.order.progress("render", done, len(jobs))

    def write_missing(self, combinations: Sequence[Combination]) -> None:
        """Let Copier write those of the projects that nobody has needed before."""
        self.write([each for each in combinations if not self.work.project(each).exists()])

    def recorded(self, digest: str) -> Any:
        """Return what an earlier check found out about a tree, if it passed."""
        return self.cache.read("passed", verdict_key(digest)) if self.cache else None

    def recall(self) -> None:
        """Take over what is known from an earlier check, for trees that passed it."""
        work = self.work
        for combination, digest in work.digests.items():
            known = self.recorded(digest)
            if known is None:
                work.fresh.append(combination)
            else:
                work.trained[combination] = Trained(**known)
                work.outcomes[combination].cached = True
        work.references = [each for each in map(self.needed_reference, work.classes().values()) if each is not None]

    def needed_reference(self, members: Sequence[Combination]) -> Combination | None:
        """Return the one of a class that is to run without a stop, too; None if this is known of one of them."""
        work = self.work
        if any(each in work.trained and work.trained[each].whole for each in members):
            return None
        first = next((each for each in members if each in work.fresh), members[0])
        if first not in work.fresh:  # known, but not without a stop
            del work.trained[first]
            work.outcomes[first].cached = False
            work.fresh.append(first)
            self.write_missing([first])
        return first

    def remember(self, outcome: Outcome) -> None:
        """Keep the verdict on a project that has passed."""
        if outcome.passed and not outcome.cached and self.cache:
            key = verdict_key(self.work.digests[outcome.combination])
            self.cache.write("passed", key, asdict(self.work.trained[outcome.combination]))
