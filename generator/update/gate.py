"""The update gate: checks that projects of released versions can be updated to this template without loss."""

import json
import random
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import yaml
from pathspec import GitIgnoreSpec

from generator.answers.combinations import Combination, covering, select, text
from generator.answers.questions import TEMPLATE, Ownership, read_ownership, read_questions
from generator.check.results import Advance
from generator.check.static import imports_of, source_files
from generator.check.train.forking import Ended, forking, run_forked, train_all
from generator.check.train.rank import Run
from generator.check.train.samples import samples_of
from generator.check.train.training_case import environment
from generator.diff.versions import read_version
from generator.render.cache import Cache
from generator.render.project import ANSWERS_FILE, RenderError, read_files, recorded_answers
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers
from generator.update import replay
from generator.update.edits import ChangedFile, carry_edits, choose_edits, merge_edits, repeats_in
from generator.update.history import CHANGES, NEXT, clone_history, read_releases, tells_of_checkpoints
from generator.update.migrate import moved_paths

T = TypeVar("T")

# In this order, each with the question that it answers.
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
PAIRS = 12  # of answers, at least
STRENGTH = 2  # of the covering sets: every pair of answers, from the newest release of each major version
STRENGTH_OF_FILES = 3  # of the projects of this version whose files are compared
# Files that only one answer needs; UPDATING.md says when an update deletes them.
OF_SHARDS = ["building.py", "estimate.py", "shard_files.py", "sharding.py"]
OF_ONE_ANSWER = GitIgnoreSpec.from_lines(
    ["/apptainer.def", *(f"/*/runtime/{name}" for name in ["ray_nodes.py", *OF_SHARDS])]
)
STOP, END = 3, 5  # steps of a run that resumes after an update
OPTIONS = ["--device", "cpu", "--backend", "gloo", "--global-batch-size", "24", "--epochs", "2", "--seed", "8"]
REFUSED = 2  # the exit code of a mistake that is reported in one line


@dataclass
class Part:
    name: str
    cases: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Carried:
    route: replay.Route
    old: Combination
    folder: Path  # with the project before (old/) and after the update (new/)
    other_texts: bool  # whether it also answers questions without choices

    def __str__(self) -> str:
        return f"{' -> '.join(self.route)}, {self.old.name}{' with other texts' if self.other_texts else ''}"


@dataclass
class Gate:
    """What to update and how, and the state of the gate while it runs."""

    revisions: Sequence[str] = ()  # none: all releases
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    progress: Advance = lambda part, done, total: None
    parts: Sequence[str] = tuple(PARTS)  # "repeats" needs "files" before it; "edits" and "resume" need "history"
    stop_early: bool = False  # whether to stop after the first part with findings
    only: Sequence[str] = ()  # answers (KEY=VALUE) that choose the projects to carry over
    strength: int | None = STRENGTH  # of the covering set of these projects; None: all of them
    pairs: int = PAIRS
    seed: int = 0  # of the choice of these pairs

    def run(self, workers: Workers, folder: Path) -> list[Part]:
        """Run all parts in a new folder, to which the workers write until they end."""
        self.workers, self.folder = workers, folder
        self.read_versions()
        parts: list[Part] = []
        for name in self.parts:
            if self.stop_early and any(part.wrong for part in parts):
                break
            parts.append(Part(name))
            started = time.perf_counter()
            getattr(self, f"try_{name}")(parts[-1])
            parts[-1].seconds = time.perf_counter() - started
        return parts

    def read_versions(self) -> None:
        """Find the routes of updates, direct and through each release between, and the projects to update."""
        self.history = clone_history(self.folder / "history", read_releases(self.template), self.template)
        tags = [release.tag for release in self.history.releases]
        if not self.revisions and not tags:
            raise RenderError("no version is released yet: name a revision to update from")
        wanted = [self.history.find_version(revision) for revision in self.revisions or tags]
        self.direct: list[replay.Route] = [(version, NEXT) for version in wanted]
        stepwise = [] if self.revisions else [(*tags[i:], NEXT) for i in range(len(tags) - 1)]
        self.version = read_version(take_snapshot(self.folder / "snapshot", self.template), self.workers, self.cache)
        self.old_versions = {}
        for revision in dict.fromkeys(route[0] for route in self.direct):
            snapshot = snapshot_of_revision(self.folder / "versions" / revision, revision, self.history.folder)
            self.old_versions[revision] = read_version(snapshot, self.workers, self.cache)
        self.covers: dict[replay.Route, Sequence[Combination]] = {}
        newest = {tag.split(".")[0]: tag for tag in tags}.values()
        widely = [route for route in self.direct if self.revisions or route[0] in newest]
        for route in [*self.direct, *stepwise]:
            version = self.old_versions[route[0]]
            chosen = select(version.combinations, self.only, version.questions)
            # From other versions, and through many, update only a few projects in which every answer occurs.
            strength = self.strength if route in widely or self.strength is None else 1
            self.covers[route] = chosen if strength is None else covering(chosen, min(strength, len(version.questions)))

    def counted(self, part: Part, cases: Iterable[T], total: int) -> Iterator[T]:
        part.cases = total
        for done, case in enumerate(cases, start=1):
            yield case
            self.progress(part.name, done, total)

    def wait_for(self, part: Part, jobs: Mapping[Future[list[str]], T]) -> list[T]:
        """Collect the findings of other processes about each thing, and return the things without findings."""
        for _ in self.counted(part, as_completed(jobs), len(jobs)):
            pass
        good = []
        for job, about in jobs.items():
            try:
                found = job.result()
            except (RenderError, jinja2.TemplateError) as error:
                found = [replay.in_one_line(error)]  # a check that fails is also a finding
            part.wrong += [f"{about}: {wrong}" for wrong in found]
            if not found:
                good.append(about)
        return good

    def try_files(self, part: Part) -> None:
        """Compare the files of this version's projects with each other, and with the files of older versions."""
        old = {self.old_versions[route[0]].folder: self.covers[route] for route in self.direct}
        now_written = self.version.combinations
        if self.strength is not None:
            now_written = covering(now_written, min(STRENGTH_OF_FILES, len(self.version.questions)))
        jobs = {}
        for version, combinations in {self.version.folder: now_written, **old}.items():
            for each in combinations:
                project = version, each, self.folder / "projects" / version.name / each.name
                jobs[self.workers.render(*project)] = project
        for _ in self.counted(part, as_completed(jobs), len(jobs)):
            pass
        paths: dict[Path, dict[Combination, frozenset[str]]] = defaultdict(dict)
        for job, (version, each, place) in jobs.items():
            if problem := job.exception():
                part.wrong.append(f"{each.name} of {version.name}: {replay.in_one_line(problem)}")
            else:
                paths[version][each] = frozenset(read_files(place))
        now = paths[self.version.folder]
        part.wrong += conditional_files(now, read_ownership(self.template))
        for version in old:
            before, written = (frozenset().union(*its.values()) for its in (paths[version], now))
            part.wrong += lost_files(before, read_ownership(version), written, read_ownership(self.template))
        part.wrong = list(dict.fromkeys(part.wrong))

    def try_repeats(self, part: Part) -> None:
        projects = [*(self.folder / "projects" / self.version.folder.name).iterdir()]
        files = {(path, content) for place in projects for path, (_, content) in read_files(place).items()}
        for path, content in self.counted(part, sorted(files), len(files)):
            part.wrong += [f"{path}: {words}" for words in repeats_in(path, content)]
        part.wrong = list(dict.fromkeys(part.wrong))

    def try_questions(self, part: Part) -> None:
        for revision, version in self.counted(part, self.old_versions.items(), len(self.old_versions)):
            wrong = forgotten_answers(version.folder, self.version.folder)
            part.wrong += [f"since {revision}: {words}" for words in wrong]

    def try_answers(self, part: Part) -> None:
        pairs = replay.draw_pairs(self.version.combinations, read_questions(self.template), self.pairs, self.seed)
        jobs = {}
        for number, pair in enumerate(pairs):
            folder = self.folder / "pairs" / str(number)
            folder.mkdir(parents=True)
            about = " ".join(f"{key}={text(value)}" for key, value in pair[0].items())
            jobs[self.workers.submit(replay.there_and_back, self.history.folder, NEXT, pair, folder)] = about
        self.wait_for(part, jobs)

    def try_history(self, part: Part) -> None:
        """Update projects of all versions. On each route, one project also answers other texts than the defaults."""
        draw = random.Random(self.seed)
        jobs = {}
        for number, (route, cover) in enumerate(self.covers.items()):
            questions = read_questions(self.old_versions[route[0]].folder)
            texts = replay.any_texts(questions, draw)
            texts |= {question.key: "n" * 40 for question in questions if question.key == replay.KEPT_ANSWER}
            projects: list[tuple[Combination, str, dict[str, str]]] = [(each, each.name, {}) for each in cover]
            for combination, name, others in [*projects, (cover[0], "texts", texts)]:
                folder = self.folder / "carried" / str(number) / name
                folder.mkdir(parents=True)
                answers: dict[str, Any] = dict(combination.answers) | others
                job = self.workers.submit(replay.carry, self.history.folder, route, answers, folder)
                jobs[job] = Carried(route, combination, folder, bool(others))
        self.carried = self.wait_for(part, jobs)

    def try_edits(self, part: Part) -> None:
        """Edit the old versions' text files that updates have changed, in all places, and update them."""
        changed: dict[ChangedFile, None] = {}
        moved: dict[ChangedFile, None] = {}
        for carried in self.carried:
            if carried.other_texts or carried.route not in self.direct:
                continue
            before, after = read_files(carried.folder / "old"), read_files(carried.folder / "new")
            for path in sorted(before.keys() & after.keys() - {ANSWERS_FILE}):
                old, new = before[path][1], after[path][1]
                if old != new and replay.is_text(old) and replay.is_text(new):
                    changed.setdefault(ChangedFile(path, old.decode(), new.decode(), str(carried)))
            for was, now in moved_paths(carried.folder / "new"):
                if was in before:
                    sides = before[was][1].decode(), after[now][1].decode()
                    moved.setdefault(ChangedFile(now, *sides, str(carried)))
        jobs, cases = {}, 0
        for carry, files in ((carry_edits, changed), (merge_edits, moved)):
            edits = choose_edits(files)
            cases += len(edits)
            for i in range(min(GROUPS, len(edits))):
                folder = self.folder / carry.__name__ / str(i)
                jobs[self.workers.submit(carry, edits[i::GROUPS], folder)] = "edited"
        self.wait_for(part, jobs)
        part.cases = cases  # of edits, not of jobs

    def try_resume(self, part: Part) -> None:
        """Go on with what projects of all versions have trained."""
        carried = {each.folder: each for each in self.carried}
        ended = resume_all([*carried], 2 * self.workers.processes)
        for folder, resumed in self.counted(part, ended, len(carried)):
            about = carried[folder]
            part.wrong += [f"{about}: {words}" for words in resumed.wrong]
            if resumed.refused:
                words = f"{about}: the old checkpoint is refused ({resumed.refused})"
                if tells_of_checkpoints(self.template, about.route[0]):
                    part.notes.append(words)
                else:
                    part.wrong.append(f"{words}, and {CHANGES} tells nobody")


def conditional_files(paths: Mapping[Combination, frozenset[str]], owned: Ownership) -> list[str]:
    """Report files that only some answers write: other answers would delete them with their edits, unless kept."""
    words = []
    written = frozenset().union(*paths.values())
    for path in sorted(path for path in written if not owned.kept(path) and not OF_ONE_ANSWER.match_file(path)):
        if without := [combination.name for combination, its in paths.items() if path not in its]:
            lost = "an update to these answers would delete an owner's edits"
            words.append(f"{path} is not written for {without[0]}: {lost}")
    return words


def lost_files(old: Iterable[str], before: Ownership, new: frozenset[str], now: Ownership) -> list[str]:
    """Report the files of an older version's project that an update would delete, or start to change."""
    words = []
    for path in sorted(path for path in old if not now.kept(path)):
        if path not in new:
            lost = f"{path} is not written any more, and an update would delete it with its owner's edits"
            words.append(f"{lost}: name it in _exclude")
        elif before.yours.match_file(path):
            words.append(f"{path} was the owner's, and is not any more")
    return words


def forgotten_answers(old: Path, new: Path) -> list[str]:
    """Report recorded answers that a newer version loses silently; docs/updates.md says what to do."""
    before, after = ({question.key: question for question in read_questions(folder)} for folder in (old, new))
    settings = yaml.safe_load((new / "copier.yml").read_text())
    defaults = [str(settings[key].get("default", "")) for key in after]
    jinja = [part for default in defaults for part in re.findall(r"\{[{%].*?[%}]\}", default, re.DOTALL)]
    wrong = []
    for key, question in before.items():
        if key not in after:
            if not any(re.search(rf"\b{key}\b", part) for part in jinja):
                wrong.append(f"the question {key} went, and no default of another one reads what was answered")
            continue
        choices = [choice.value for choice in after[key].choices]
        gone = [text(choice.value) for choice in question.choices if choice.value not in choices]
        if gone and choices:
            lost = f"{key}={', '.join(gone)} went: whoever answered that gets the default"
            wrong.append(f"{lost}, so rename the question")
        elif bool(question.choices) != bool(choices):
            wrong.append(f"{key} takes other answers than before: rename the question")
    return wrong


@dataclass
class Resumed:
    wrong: list[str] = field(default_factory=list)
    refused: str = ""  # the error of the updated project if it refuses the checkpoint


def resume_all(folders: Sequence[Path], at_once: int) -> Iterator[tuple[Path, Resumed]]:
    """Train old/ of each folder on two processes, resume in new/ from its checkpoint, and yield the results."""
    with forking() as name_modules:
        name_modules(imports_of(source_files(folder / side) for folder in folders for side in ("old", "new")))
        yield from train_all(resume, folders, at_once)


def train(project: Path, run_dir: Path, steps: int, *options: str) -> Ended:
    task, launcher, logger = map(Combination.of(recorded_answers(project)).answer, ("task", "launcher", "logging"))
    samples = samples_of({task}, project.parent / "samples")
    data = ["--data", str(samples[task])] if samples else []
    every = [*OPTIONS, *data, "--run-dir", str(run_dir), "--max-steps", str(steps), *options]
    return run_forked(Run(project, launcher, every, environment(project.parent), None, logger))


def resume(folder: Path) -> Resumed:
    """Stop a run of the old project half-way, and resume it in both projects."""
    run_dir, without_update = folder / "run", folder / "run-without-update"
    half = train(folder / "old", run_dir, STOP)
    if half.complaint:
        return Resumed([f"the project does not train before its update: {half.complaint}"])
    shutil.copytree(run_dir, without_update)
    before = train(folder / "old", without_update, END, "--resume")
    # Since version 2, the default of --precision is another one; in version 1.0, the option was --amp-dtype.
    saved = json.loads((run_dir / "config.json").read_text())
    precision = saved.get("precision", saved.get("amp_dtype"))
    options = ("--precision", precision) if precision else ()
    after = train(folder / "new", run_dir, END, "--resume", *options)
    if after.complaint:
        # The line with which the program refuses this checkpoint, if there is one.
        lines = [line for text in after.output for line in text.splitlines() if REFUSED in after.codes]
        if refused := next((line for line in lines if "error: " in line and str(run_dir) in line), ""):
            return Resumed(refused=refused)
        return Resumed([f"the updated project does not go on from the old checkpoint: {after.complaint}"])
    # The steps of rank 0 after the checkpoint.
    with_update, without = ([step.weights for step in ended.seen[0].steps] for ended in (after, before))
    if len(with_update) != END - STOP:
        steps = f"{len(with_update)} steps follow step {STOP}, where {END - STOP} are left"
        return Resumed([f"the updated project does not go on where the old one stopped: {steps}"])
    return Resumed([] if with_update == without else ["the updated project computes other numbers than before"])
