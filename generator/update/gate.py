"""The update gate: whether the projects of released versions can be updated to the template as it is, without loss."""

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from generator.answers.combinations import Combination, text
from generator.answers.questions import TEMPLATE, read_questions
from generator.answers.selection import covering, select
from generator.check.results import Advance
from generator.diff.versions import Version, read_version
from generator.render.cache import Cache
from generator.render.project import ANSWERS_FILE, RenderError, recorded_answers
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.trees import read_files
from generator.render.workers import Workers
from generator.update.answers import any_texts, draw_pairs, forgotten_answers, there_and_back
from generator.update.edits import ChangedFile, carry_edits, choose_edits
from generator.update.history import NEXT, clone_history, read_releases
from generator.update.ownership import KEPT_ANSWER, conditional_files, lost_files, read_ownership
from generator.update.places import repeats_in
from generator.update.release import CHANGES, tells_of_checkpoints
from generator.update.replay import is_text
from generator.update.resumption import Resumption, resume_all
from generator.update.routes import Route, carry, routes

T = TypeVar("T")

# In their order, with what each of them asks.
PARTS = {
    "files": "does it write the files that the versions before wrote, and the same for all answers",
    "repeats": "has every place of a file surroundings of its own",
    "questions": "is every answer that an older version has recorded still read",
    "answers": "is an update to other answers what a copy with them is, and does another one undo it",
    "history": "is an update of a released version what a copy of this one is",
    "edits": "is an edit at any place still in its place, or in a visible conflict",
    "resume": "does a run that the released version's project began go on in the updated one",
}
GROUPS = 8  # of edits, each in one update


@dataclass
class Part:
    """What one part of the gate has found."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Carried:
    """A project of a released version that is updated."""

    route: Route
    old: Combination
    folder: Path  # holds it before, old/, and after, new/
    texts: tuple[tuple[str, str], ...] = ()  # answers to the questions that have no choices, but for the defaults

    def __str__(self) -> str:
        return f"{self.route}, {self.old.name}{' with other texts' if self.texts else ''}"

    @property
    def answers(self) -> dict[str, Any]:
        """What it is copied with."""
        return dict(self.old.answers) | dict(self.texts)

    def new(self, version: Version) -> Combination:
        """What it has answered to the questions of the new version."""
        answers = recorded_answers(self.folder / "new")
        return Combination.of({question.key: answers[question.key] for question in version.questions})


class Trial:
    """What is known while the gate is tried."""

    def __init__(self, gate: "Gate", folder: Path, workers: Workers) -> None:
        self.gate, self.folder, self.workers = gate, folder, workers
        self.history = clone_history(folder / "history", read_releases(gate.template), gate.template)
        self.routes = self.read_routes()
        self.version = read_version(take_snapshot(folder / "snapshot", gate.template), workers, gate.cache)
        revisions = dict.fromkeys(route.stops[0] for route in self.routes)
        self.old_versions = {revision: self.read_revision(revision) for revision in revisions}
        self.covers = {route: self.cover(route) for route in self.routes}
        self.carried: list[Carried] = []  # whose update went well

    def read_routes(self) -> list[Route]:
        """Return the ways on which projects are updated. Raises RenderError if there are none."""
        if self.gate.revisions:
            return [Route((self.history.find_version(revision), NEXT)) for revision in self.gate.revisions]
        tags = [release.tag for release in self.history.releases]
        if not tags:
            raise RenderError("no version is released yet: name a revision to update from")
        return routes(tags, NEXT)

    def read_revision(self, revision: str) -> Version:
        """Read a version that projects are copied from."""
        snapshot = snapshot_of_revision(self.folder / "versions" / revision, revision, self.history.folder)
        return read_version(snapshot, self.workers, self.gate.cache)

    def cover(self, route: Route) -> Sequence[Combination]:
        """Return the combinations that go a way; through many versions, only a few in which every answer occurs."""
        version = self.old_versions[route.stops[0]]
        strength = self.gate.strength if route.is_direct else 1
        every = select(version.combinations, self.gate.only, version.questions)
        return every if strength is None else covering(every, min(strength, len(version.questions)))

    def counted(self, part: Part, cases: Iterable[T], total: int) -> Iterator[T]:
        """Pass cases on as they come, and show how many there were."""
        part.cases = total
        for done, case in enumerate(cases, start=1):
            yield case
            self.gate.progress(part.name, done, total)

    def wait_for(self, part: Part, jobs: Mapping[Future[list[str]], object]) -> None:
        """Take what other processes have found, each under what it was about."""
        for _ in self.counted(part, as_completed(jobs), len(jobs)):
            pass
        for job, about in jobs.items():
            part.wrong += [f"{about}: {wrong}" for wrong in findings(job)]

    def try_files(self, part: Part) -> None:
        """Compare the files of this version's projects with each other, and with those of the versions before."""
        direct = [route for route in self.routes if route.is_direct]
        covers = {self.old_versions[route.stops[0]].folder: self.covers[route] for route in direct}
        paths = self.render(part, {self.version.folder: self.version.combinations, **covers})
        now = paths[self.version.folder]
        part.wrong += conditional_files(now)
        for folder in covers:
            before = frozenset().union(*paths[folder].values())
            written = frozenset().union(*now.values())
            part.wrong += lost_files(before, read_ownership(folder), written, read_ownership(self.gate.template))
        part.wrong = list(dict.fromkeys(part.wrong))

    def render(
        self, part: Part, versions: Mapping[Path, Sequence[Combination]]
    ) -> dict[Path, dict[Combination, frozenset[str]]]:
        """Write projects of versions, and return the paths of their files."""
        projects = {
            (version, each): self.folder / "projects" / version.name / each.name
            for version, combinations in versions.items()
            for each in combinations
        }
        jobs = {self.workers.render(*key, place): key for key, place in projects.items()}
        for _ in self.counted(part, as_completed(jobs), len(jobs)):
            pass
        paths: dict[Path, dict[Combination, frozenset[str]]] = {version: {} for version in versions}
        for job, (version, combination) in jobs.items():
            if problem := job.exception():
                part.wrong.append(f"{combination.name} of {version.name}: {in_one_line(problem)}")
            else:
                paths[version][combination] = frozenset(read_files(projects[version, combination]))
        return paths

    def try_repeats(self, part: Part) -> None:
        """Look for lines that occur twice in a file of any project."""
        files = {
            (path, content)
            for place in (self.folder / "projects" / self.version.folder.name).iterdir()
            for path, (_, content) in read_files(place).items()
        }
        for path, content in self.counted(part, sorted(files), len(files)):
            part.wrong += [f"{path}: {words}" for words in repeats_in(content)]
        part.wrong = list(dict.fromkeys(part.wrong))

    def try_questions(self, part: Part) -> None:
        """Compare the questions of this version with those of the versions before."""
        for revision, version in self.counted(part, self.old_versions.items(), len(self.old_versions)):
            wrong = forgotten_answers(version.folder, self.version.folder)
            part.wrong += [f"since {revision}: {words}" for words in wrong]

    def try_answers(self, part: Part) -> None:
        """Change answers by updates, and change them back."""
        questions = read_questions(self.gate.template)
        pairs = draw_pairs(self.version.combinations, questions, self.gate.pairs, self.gate.seed)
        jobs = {}
        for number, pair in enumerate(pairs):
            folder = self.folder / "pairs" / str(number)
            folder.mkdir(parents=True)
            about = " ".join(f"{key}={text(value)}" for key, value in pair[0].items())
            jobs[self.workers.submit(there_and_back, self.history.folder, NEXT, pair, folder)] = about
        self.wait_for(part, jobs)

    def try_history(self, part: Part) -> None:
        """Update projects of all versions."""
        jobs = {}
        for carried in self.projects_of_versions():
            carried.folder.mkdir(parents=True)
            jobs[self.workers.submit(carry, self.history.folder, carried.route, carried.answers, carried.folder)] = (
                carried
            )
        self.wait_for(part, jobs)
        self.carried = [carried for job, carried in jobs.items() if not findings(job)]

    def projects_of_versions(self) -> Iterator[Carried]:
        """Yield the projects that are updated: of each way one answers other texts than the defaults, too."""
        draw = random.Random(self.gate.seed)
        for number, route in enumerate(self.routes):
            place = self.folder / "carried" / str(number)
            for combination in self.covers[route]:
                yield Carried(route, combination, place / combination.name)
            questions = read_questions(self.old_versions[route.stops[0]].folder)
            texts = any_texts(questions, draw)
            if KEPT_ANSWER in [question.key for question in questions]:
                texts[KEPT_ANSWER] = "n" * 40
            yield Carried(route, self.covers[route][0], place / "texts", tuple(texts.items()))

    def try_edits(self, part: Part) -> None:
        """Edit the old versions' files in all places, and update them."""
        changed = itertools.chain.from_iterable(map(self.changed_files, self.carried))
        edits = choose_edits(dict.fromkeys(changed))
        groups = [edits[i::GROUPS] for i in range(GROUPS) if edits[i::GROUPS]]
        jobs = {
            self.workers.submit(carry_edits, group, self.folder / "edits" / str(number)): "edited"
            for number, group in enumerate(groups)
        }
        self.wait_for(part, jobs)
        part.cases = len(edits)

    def changed_files(self, carried: Carried) -> Iterator[ChangedFile]:
        """The text files of a project that the update has changed, and that owners may edit."""
        if carried.texts or not carried.route.is_direct:
            return
        before, after = read_files(carried.folder / "old"), read_files(carried.folder / "new")
        for path in sorted(before.keys() & after.keys() - {ANSWERS_FILE}):
            old, new = before[path][1], after[path][1]
            if old != new and is_text(old) and is_text(new):
                yield ChangedFile(path, old.decode(), new.decode(), str(carried))

    def try_resume(self, part: Part) -> None:
        """Go on with what projects of all versions have trained."""
        resumptions = {Resumption(each.folder, each.old, each.new(self.version)): each for each in self.carried}
        for resumed in self.counted(part, resume_all(resumptions, 2 * self.workers.processes), len(resumptions)):
            about = resumptions[resumed.resumption]
            part.wrong += [f"{about}: {words}" for words in resumed.wrong]
            part.notes += [f"{about}: {words}" for words in resumed.notes]
            if resumed.refused:
                words = f"{about}: the old checkpoint is refused ({resumed.refused})"
                if tells_of_checkpoints(self.gate.template, about.route.stops[0]):
                    part.notes.append(words)
                else:
                    part.wrong.append(f"{words}, and {CHANGES} tells nobody")


def findings(job: Future[list[str]]) -> list[str]:
    """Return what a job has found; what kept it from looking is a finding, too."""
    try:
        return job.result()
    except (RenderError, jinja2.TemplateError) as error:
        return [in_one_line(error)]


def in_one_line(error: BaseException) -> str:
    """Return the words of an error."""
    return " ".join(str(error).split()) or type(error).__name__


PAIRS = 12  # of answers, at least
STRENGTH = 2  # of the covering set: every pair of answers


@dataclass
class Gate:
    """What to update, and how."""

    revisions: Sequence[str] = ()  # all releases where there are none
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    progress: Advance = lambda part, done, total: None
    parts: Sequence[str] = tuple(PARTS)  # "repeats" needs "files" before it; "edits" and "resume" need "history"
    stop_early: bool = False  # after the first part that finds something
    only: Sequence[str] = ()  # answers, KEY=VALUE, of the projects that are carried over
    strength: int | None = STRENGTH  # of the set of answers that covers them; None: all of them
    pairs: int = PAIRS
    seed: int = 0  # of the choice of these pairs

    def run(self, workers: Workers, folder: Path) -> list[Part]:
        """Try all parts in a new folder, to which the workers may write until they are gone.

        Raises RenderError if a version cannot be found or read, and SelectionError if no project is chosen.
        """
        trial = Trial(self, folder, workers)
        parts: list[Part] = []
        for name in self.parts:
            if self.stop_early and any(part.wrong for part in parts):
                break
            parts.append(Part(name))
            started = time.perf_counter()
            getattr(trial, f"try_{name}")(parts[-1])
            parts[-1].seconds = time.perf_counter() - started
        return parts
