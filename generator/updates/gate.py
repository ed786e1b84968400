"""The update gate: whether the projects of released versions can be updated to the template as it is, without loss."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..cache import Cache
from ..combinations import Combination, text
from ..differences import Version, read_version
from ..questions import TEMPLATE, read_questions
from ..rendering import ANSWERS_FILE, recorded_answers
from ..scratch import scratch_folder
from ..selection import covering, select
from ..snapshot import snapshot_of_revision, take_snapshot
from ..workers import Workers
from .answering import draw_pairs, forgotten_answers, there_and_back
from .carrying import Route, carry, routes
from .editing import ChangedFile, carry_edits, choose_edits
from .history import NEXT, clone_history
from .ownership import conditional_files, lost_files, read_ownership
from .release import CHANGES, tells_of_checkpoints
from .releases import read_releases
from .repeats import repeats_in
from .replay import is_text, read_files
from .resuming import Resumption, resume_all

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
ROOM = 2 * 2**30  # bytes
PAIRS = 12  # of answers, at least
GROUPS = 8  # of edits, each in one update
STRENGTH = 2  # of the covering set: every pair of answers

Progress = Callable[[str, int, int], None]  # as in checking.py


@dataclass
class Part:
    """What one part of the gate has found."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Gate:
    """What to update, and how."""

    revisions: Sequence[str] = ()  # all releases where there are none
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    progress: Progress = lambda part, done, total: None
    parts: Sequence[str] = tuple(PARTS)  # "repeats" needs "files" before it; "edits" and "resume" need "history"
    stop_early: bool = False  # after the first part that finds something
    only: Sequence[str] = ()  # combinations with these answers, KEY=VALUE, as they were before
    strength: int | None = STRENGTH  # of the set that covers them; None: all of them
    pairs: int = PAIRS
    seed: int = 0  # of the choice of these pairs

    def run(self, workers: Workers) -> list[Part]:
        """Try all parts. Raises RenderError where a version cannot be found or read."""
        with scratch_folder(ROOM) as folder:
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


@dataclass(frozen=True)
class Carried:
    """A project of a released version that was updated."""

    route: Route
    old: Combination
    folder: Path  # holds it before, old/, and after, new/

    def __str__(self) -> str:
        return f"{self.route}, {self.old.name}"

    def new(self, version: Version) -> Combination:
        """What it has answered to the questions of the new version."""
        answers = recorded_answers(self.folder / "new")
        return Combination.of({question.key: answers[question.key] for question in version.questions})


class Trial:
    """What is known while the gate is tried."""

    def __init__(self, gate: Gate, folder: Path, workers: Workers) -> None:
        self.gate, self.folder, self.workers = gate, folder, workers
        self.history = clone_history(folder / "history", read_releases(gate.template), gate.template)
        tags = [release.tag for release in self.history.releases]
        wanted = [self.history.tag_revision(revision) for revision in gate.revisions]
        self.routes = [Route((revision, NEXT)) for revision in wanted] if wanted else routes(tags, NEXT)
        self.version = read_version(take_snapshot(folder / "snapshot", gate.template), workers, gate.cache)
        revisions = dict.fromkeys(route.stops[0] for route in self.routes)
        self.old_versions = {revision: self.read_revision(revision) for revision in revisions}
        self.carried: list[Carried] = []

    def read_revision(self, revision: str) -> Version:
        """Read a version that projects are copied from."""
        snapshot = snapshot_of_revision(self.folder / "versions" / revision, revision, self.history.folder)
        return read_version(snapshot, self.workers, self.gate.cache)

    def cover(self, route: Route) -> Sequence[Combination]:
        """Give the combinations that go a way; through many versions, only a few in which every answer occurs."""
        version = self.old_versions[route.stops[0]]
        strength = self.gate.strength if route.is_direct else 1
        every = select(version.combinations, self.gate.only, version.questions)
        return every if strength is None else covering(every, min(strength, len(version.questions)))

    def counted(self, part: Part, cases: Iterable[T], total: int) -> Iterator[T]:
        """Pass cases on as they come, and show how many there were."""
        before, part.cases = part.cases, part.cases + total
        for done, case in enumerate(cases, start=before + 1):
            yield case
            self.gate.progress(part.name, done, part.cases)

    def wait_for(self, part: Part, jobs: Mapping[Future[list[str]], object]) -> None:
        """Take what other processes have found, each under what it was about."""
        for job in self.counted(part, as_completed(jobs), len(jobs)):
            part.wrong += [f"{jobs[job]}: {wrong}" for wrong in job.result()]

    def try_history(self, part: Part) -> None:
        """Update projects of all versions."""
        jobs = {}
        for number, route in enumerate(self.routes):
            for combination in self.cover(route):
                carried = Carried(route, combination, self.folder / "carried" / str(number) / combination.name)
                carried.folder.mkdir(parents=True)
                jobs[self.workers.submit(carry, self.history.folder, route, combination, carried.folder)] = carried
        self.wait_for(part, jobs)
        self.carried = list(jobs.values())

    def try_files(self, part: Part) -> None:
        """Compare the files of this version's projects with each other, and with those of the versions before."""
        now, paths = read_ownership(self.gate.template), self.render(part, self.version, self.version.combinations)
        part.wrong += conditional_files(paths)
        written = frozenset.union(*paths.values())
        for route in (route for route in self.routes if route.is_direct):
            version = self.old_versions[route.stops[0]]
            before = frozenset.union(*self.render(part, version, self.cover(route)).values())
            part.wrong += lost_files(before, read_ownership(version.folder), written, now)
        part.wrong = list(dict.fromkeys(part.wrong))

    def render(
        self, part: Part, version: Version, combinations: Sequence[Combination]
    ) -> dict[Combination, frozenset[str]]:
        """Write projects of a version, and give the paths of their files."""
        projects = {each: self.folder / "projects" / version.folder.name / each.name for each in combinations}
        jobs = [self.workers.render(version.folder, each, place) for each, place in projects.items()]
        for job in self.counted(part, as_completed(jobs), len(jobs)):
            job.result()
        return {each: frozenset(read_files(place)) for each, place in projects.items()}

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
        jobs = {}
        for number, pair in enumerate(
            draw_pairs(self.version.combinations, questions, self.gate.pairs, self.gate.seed)
        ):
            folder = self.folder / "pairs" / str(number)
            folder.mkdir(parents=True)
            about = " ".join(f"{key}={text(value)}" for key, value in pair[0].items())
            jobs[self.workers.submit(there_and_back, self.history.folder, NEXT, pair, folder)] = about
        self.wait_for(part, jobs)

    def try_resume(self, part: Part) -> None:
        """Go on with what projects of all versions have trained."""
        sound = [each for each in self.carried if (each.folder / "new").exists()]
        resumptions = {Resumption(each.folder, each.old, each.new(self.version)): each for each in sound}
        for resumed in self.counted(part, resume_all(resumptions, 2 * self.workers.processes), len(resumptions)):
            about = resumptions[resumed.resumption]
            part.wrong += [f"{about}: {words}" for words in resumed.wrong]
            part.notes += [f"{about}: {words}" for words in resumed.notes]
            if resumed.refused:
                told = tells_of_checkpoints(self.gate.template)
                words = f"{about}: the old checkpoint is refused ({resumed.refused})"
                if told:
                    part.notes.append(words)
                else:
                    part.wrong.append(f"{words}, and {CHANGES} tells nobody")

    def try_edits(self, part: Part) -> None:
        """Edit the old versions' files in all places, and update them."""
        edits = choose_edits(dict.fromkeys(itertools.chain.from_iterable(map(self.changed_files, self.carried))))
        groups = [edits[i::GROUPS] for i in range(GROUPS) if edits[i::GROUPS]]
        jobs = {}
        for number, group in enumerate(groups):
            jobs[self.workers.submit(carry_edits, group, self.folder / "edits" / str(number))] = "an update"
        self.wait_for(part, jobs)
        part.cases = len(edits)

    def changed_files(self, carried: Carried) -> Iterator[ChangedFile]:
        """The text files of a project that the update has changed, and that owners may edit."""
        before, after = read_files(carried.folder / "old"), read_files(carried.folder / "new")
        for path in sorted(before.keys() & after.keys() - {ANSWERS_FILE}):
            if before[path][1] != after[path][1] and is_text(before[path][1]) and is_text(after[path][1]):
                yield ChangedFile(path, before[path][1].decode(), after[path][1].decode())
