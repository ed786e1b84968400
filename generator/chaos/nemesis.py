"""Applies a schedule of faults to a run, resumes the run after each end, and reports what is wrong with it."""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path

from generator.answers.combinations import SelectionError
from generator.chaos import invariants
from generator.chaos.faults import DONE, FAULTS, GONE, STOPPED, Need
from generator.chaos.invariants import newest_step
from generator.chaos.job import Job, Starter
from generator.chaos.schedule import NUMBERS, PROCESSES, STARTING, TOGETHER, TRAINING, Fault, Schedule, Start, draw
from generator.chaos.surroundings import Surroundings, failing_disk
from generator.check.train.records import READERS, History
from generator.check.train.shards import read_whole

LOG_EVERY = 5  # steps
STEPS = 200  # of a run: enough time for AT_ONCE faults
AT_ONCE = 8
TIMEOUT = 30  # seconds, since ranks may be far apart
USUAL_SLOWNESS = 2.0
ON_CPU = ("--device", "cpu", "--backend", "gloo", "--timeout", str(TIMEOUT))
OPTIONS = (*ON_CPU, "--epochs", "1000", "--log-every", str(LOG_EVERY))
BEGINS_WITHIN = 60.0  # seconds until a launch trains
DONE_WITHIN = 600.0  # seconds in which a run without faults is done
HANGS_AFTER = TIMEOUT + 60.0  # seconds without progress: ranks name a lost rank before, and a launcher kills it
OF_LAUNCHERS = [name for name, kind in FAULTS.items() if kind.need == Need.LAUNCHER]
THAN_BASELINE = " than without faults"
SAVE_EVERY = 5  # steps
LOOKS_EVERY = 0.1  # seconds, since each look reads the whole output of a run
USUAL = 0.25  # seconds between two saves, which the lengths of faults assume
SLOWEST = 5.0  # largest pace: a fault that passes must take less than --timeout


class UnsuitableProject(SelectionError):
    """The runs of a project do not show what a fault changes."""


@dataclass(frozen=True)
class Baseline:
    """A run without a fault, and how fast it was (seconds)."""

    run_dir: Path
    recorded: History
    starts_in: float  # until the first save
    interval: float  # between two saves
    silence: float  # the longest time without progress, from the first save on

    @property
    def pace(self) -> float:
        """Return the factor by which faults last longer here than in a run with the usual interval between saves."""
        return min(max(1.0, self.interval / USUAL), SLOWEST)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of processes that divide its global batch."""
        config = json.loads((self.run_dir / "config.json").read_text())
        size, accum_steps = config.get("global_batch_size", 0), config.get("accum_steps", 1)
        return [number for number in NUMBERS if size % (number * accum_steps) == 0]


class Watch:
    """Polls a run: its newest checkpoint, and how long it has made no progress."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self.job = job
        self.run_dir = run_dir
        self.step = 0
        self.printed = 0  # characters
        self.looked = 0.0  # time.monotonic(), as the next one
        self.moved = time.monotonic()

    def silence(self) -> float:
        """Return the seconds since the last checkpoint or output."""
        now = time.monotonic()
        if now > self.looked + LOOKS_EVERY:
            step, printed, self.looked = newest_step(self.run_dir), len(self.job.output()), now
            if (step, printed) != (self.step, self.printed):
                self.step, self.printed, self.moved = step, printed, now
        return now - self.moved


def follow(job: Job, run_dir: Path, steps: int, limit: float) -> tuple[float, float, float]:
    """Wait until a run without a fault is done; return starts_in, interval and silence of a baseline."""
    began, watch, longest = time.monotonic(), Watch(job, run_dir), 0.0
    saves: list[tuple[float, int]] = []  # times and steps
    while (code := job.code()) is None:
        if time.monotonic() > began + limit:
            raise UnsuitableProject(f"a run without a fault was not done in {limit:.0f} s: give fewer --steps")
        silence = watch.silence()
        if watch.step > max((step for _, step in saves), default=0):
            saves.append((time.monotonic(), watch.step))
        longest = max(longest, silence) if saves else 0.0
        time.sleep(0.01)
    if code in (DONE, STOPPED) and (step := newest_step(run_dir)) != steps:
        sooner = "leave out what ends it sooner, such as --epochs, --patience or --max-hours"
        raise UnsuitableProject(f"a run without a fault ended at step {step} of {steps}: {sooner}")
    if code != DONE:
        raise UnsuitableProject(f"exit code {code} without a fault: {job.output().strip()[-2000:]}")
    saves.append((time.monotonic(), steps))
    (begin, first), (end, last) = saves[0], saves[-1]
    return begin - began, (end - begin) * SAVE_EVERY / max(1, last - first), max(longest, watch.silence())


@dataclass
class StartResult:
    start: Start
    happened: list[Fault]
    code: int | None
    seconds: float

    def __str__(self) -> str:
        options = " ".join(f"--{name} {value}".strip() for name, value in self.start.options.items())
        faults = ", ".join(map(str, self.happened)) or "nothing"
        return f"{self.start.processes} processes {options}: {faults}: exit code {self.code} after {self.seconds:.1f} s"


@dataclass
class Verdict:
    schedule: Schedule
    results: list[StartResult] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def happened(self) -> list[Fault]:
        return [fault for each in self.results for fault in each.happened]


@dataclass
class Nemesis:
    project: Path
    start: Starter
    logger: str  # the answer to "logging"
    folder: Path  # for the runs
    kinds: Sequence[str]  # of FAULTS, that are drawn
    around: Surroundings = field(default_factory=Surroundings)
    hides: Collection[int] = ()  # exit codes of a launcher that replace the code of the rank that failed first
    read: Callable[[Path], History] | None = None  # reads the records, instead of the reader of the logger
    options: Sequence[str] = ()  # of train.py
    steps: int = STEPS
    slowness: Callable[[], float] = lambda: 1.0  # of this machine now, a factor of all limits
    here: Collection[str] = tuple(FAULTS)  # the kinds that are possible on this machine

    @cached_property
    def files(self) -> invariants.Files:
        return invariants.look_at_files(self.project)

    @cached_property
    def baseline(self) -> Baseline:
        """A run without a fault. Raises UnsuitableProject if it does not train, or leaves nothing to compare."""
        before, baseline = self.files, self._run_baseline("baseline")
        if changed := invariants.changed_files(self.project, before):
            raise UnsuitableProject(f"a run without a fault changes {changed[0]}, a file of the project")
        if self._reader and not any(baseline.recorded.values()):
            where = f"of logging={self.logger} in its run directory"
            raise UnsuitableProject(f"a run without a fault leaves no records {where}")
        return baseline

    @cached_property
    def second(self) -> Baseline:
        return self._run_baseline("second")

    def _run_baseline(self, name: str) -> Baseline:
        self._set_clock()
        run_dir = self.folder / name / "run"
        run_dir.parent.mkdir()
        job = self.start(run_dir, PROCESSES, self._options_of(Start(PROCESSES, {}, []), resume=False))
        try:
            pace = follow(job, run_dir, self.steps, DONE_WITHIN * self.slowness())
        finally:
            job.end()
        try:
            recorded = self._recorded(run_dir)
        except Exception as error:  # other people's readers raise what they like
            raise UnsuitableProject(f"the records of logging={self.logger} cannot be read: {error!r}") from error
        return Baseline(run_dir, recorded, *pace)

    def drawn(self, seed: int) -> Schedule:
        """Draw a schedule without faults that are impossible on this machine or with this project."""
        return draw(seed, AT_ONCE, self.kinds).fitted(self.here, self.baseline.numbers)

    def run_until(self, faults: int, seed: int) -> Iterator[Verdict]:
        """Draw schedules from this seed on, until this number of faults has happened, and yield each verdict."""
        happened = 0
        while happened < faults:
            if (schedule := self.drawn(seed)).starts:
                yield (verdict := self.run(schedule))
                happened += len(verdict.happened)
            seed += 1

    def run(self, schedule: Schedule) -> Verdict:
        """Apply the faults of a schedule to a new run, until it is done."""
        verdict, pace, before = Verdict(schedule), self.baseline.pace, self.files
        self._set_clock()
        places = (self.folder / f"seed-{schedule.seed}-{number}" for number in count())
        place = next(place for place in places if not place.exists())
        place.mkdir()
        with ExitStack() as stack:
            around = replace(self.around, pace=pace)
            run_dir = files = place / "run"
            if any(FAULTS[fault.kind].need == Need.DISK for fault in schedule.faults):
                around.disk = stack.enter_context(failing_disk(place))
                run_dir, files = around.disk.mount / "run", around.disk.folder / "run"
            for start in [*schedule.starts, Start(schedule.starts[0].processes, {}, [])]:
                self._run_start(start, run_dir, files, around, verdict)
                if verdict.wrong or verdict.results[-1].code == DONE:
                    break
        verdict.wrong += [] if verdict.wrong else self._wrong_at_the_end(files, verdict)
        if changed := invariants.changed_files(self.project, before):
            verdict.wrong.append(f"{changed[0]}, a file of the project, was changed")
            self.files = invariants.look_at_files(self.project)  # the next run must not be blamed
        if not verdict.wrong:
            shutil.rmtree(place, ignore_errors=True)
        return verdict

    def _set_clock(self) -> None:
        if self.around.clock:
            self.around.clock.jump(0)  # undo the jumps of the run before

    def _run_start(self, start: Start, run_dir: Path, files: Path, around: Surroundings, verdict: Verdict) -> None:
        before, began, around.hit = newest_step(files), time.monotonic(), None
        around.states_met()  # forget the states of the launch before
        job = self.start(run_dir, start.processes, self._options_of(start, resume=before > 0))
        try:
            happened = [fault for fault in start.faults if self._happens(fault, job, files, around, before)]
            code = self._end_of(job, files, happened)
            happened = [*took_effect(happened, around.states_met(), code)]
            verdict.results.append(StartResult(start, happened, code, time.monotonic() - began))
            wrong = [*filter(None, [self._wrong_end(job, files, happened, code, around.hit)])]
            left = invariants.orphans(job, self.slowness() * slowed(happened)) if code is not None else []
            wrong += [f"a process is left: {each}" for each in left]
        finally:
            job.end()
            around.reset()
        wrong += [f"damaged: {file}" for file in invariants.damaged_checkpoints(files)]
        wrong += self._lost(job, start, before, newest_step(files), code)
        verdict.wrong += [f"start {len(verdict.results)}: {each}" for each in wrong]

    def _lost(self, job: Job, start: Start, before: int, after: int, code: int | None) -> Iterator[str]:
        if after < before:
            yield f"the newest checkpoint was that of step {before}, and is that of step {after}"
        lost = invariants.last_step_told(job.output()) - after
        if lost > (limit := (2 if "async-saves" in start.options else 1) * SAVE_EVERY) and code != DONE:
            yield f"{lost} steps are lost, and {limit} may be"

    def _options_of(self, start: Start, *, resume: bool) -> list[str]:
        timeout = TIMEOUT * max(1.0, self.slowness() / USUAL_SLOWNESS)  # enough for workers to start on a busy machine
        options = {"timeout": f"{timeout:.0f}", "save-every": str(SAVE_EVERY), "max-steps": str(self.steps)}
        options |= start.options
        words = [word for name, value in options.items() for word in (f"--{name}", value) if word]
        return [*OPTIONS, *self.options, *words, *(["--resume"] if resume else [])]

    def _happens(self, fault: Fault, job: Job, files: Path, around: Surroundings, before: int) -> bool:
        """Wait for the moment, and apply the fault. Returns False if the run ended before."""
        trains_in = BEGINS_WITHIN + self.baseline.starts_in + fault.saves * self.baseline.interval
        deadline = time.monotonic() + trains_in * self.slowness()
        old = temporary_files(files)

        def is_time() -> bool:
            if fault.moment in (STARTING, TOGETHER):
                return bool(job.ranks())
            enough = newest_step(files) >= before + fault.saves * SAVE_EVERY
            return enough and (fault.moment == TRAINING or not temporary_files(files) <= old)

        while not is_time():
            if job.code() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02 if fault.moment == STARTING else 0.002)
        time.sleep(fault.delay * (self.baseline.starts_in if fault.moment == STARTING else 1.0))
        if job.code() is not None:
            return False
        try:
            FAULTS[fault.kind].act(job, around, fault.victim, fault.length)
        except GONE:
            return False
        return True

    def _end_of(self, job: Job, files: Path, happened: Sequence[Fault]) -> int | None:
        """Wait for the end of a job, and return its exit code; None after the time limit, or without progress."""
        ends = [kind.patience for fault in happened if (kind := FAULTS[fault.kind]).is_end]
        slowness = self.slowness() * slowed(happened)
        patience, silence = DONE_WITHIN, HANGS_AFTER * slowness + self.baseline.silence
        if self.around.machines:
            silence = math.inf  # a job may wait for a machine
        elif ends:
            patience = max(ends) + self.baseline.silence
        watch, deadline = Watch(job, files), time.monotonic() + patience * slowness
        while (code := job.code()) is None and time.monotonic() < deadline and watch.silence() < silence:
            time.sleep(0.01)
        return code

    def _wrong_at_the_end(self, files: Path, verdict: Verdict) -> list[str]:
        is_exact = verdict.schedule.is_exact
        resumed, happened = len(verdict.results) > 1, {fault.kind for fault in verdict.happened}
        killed_along = self.logger in invariants.KILLED_ALONG and not {*self.kinds}.isdisjoint(OF_LAUNCHERS)
        lacking = killed_along or not happened.isdisjoint(invariants.MAY_LACK.get(self.logger, ()))
        wrong = self._differences(files, self._recorded(files), is_exact=is_exact, may_lack=resumed and lacking)
        if wrong and (unsteady := self._differences(self.second.run_dir, self.second.recorded, is_exact=is_exact)):
            differ = "; ".join(unsteady).replace(THAN_BASELINE, "")
            raise UnsuitableProject(f"two runs without a fault differ: {differ}")
        return wrong

    def _differences(self, run_dir: Path, recorded: History, *, is_exact: bool, may_lack: bool = False) -> list[str]:
        ours, theirs = (read_whole(run / "checkpoints" / "last.pt") for run in (run_dir, self.baseline.run_dir))
        of_baseline = self.baseline.recorded
        if is_exact:
            wrong = invariants.differing_parts(ours, theirs)
        else:
            wrong = invariants.differing_counts(ours, theirs)
            recorded, of_baseline = invariants.only_steps(recorded), invariants.only_steps(of_baseline)
        wrong = [f"{part} is another{THAN_BASELINE}" for part in wrong]
        return wrong + invariants.wrong_records(recorded, of_baseline, may_lack=may_lack)

    def _wrong_end(self, job: Job, files: Path, happened: Sequence[Fault], code: int | None, hit: int | None) -> str:
        output = job.output()
        wrong = ""
        if code is None:
            wrong = "it does not end"
        elif code != DONE:
            wrong = invariants.unexpected_failure(happened, hit, code, output, self.hides)
        elif newest_step(files) < self.steps:
            wrong = f"it is done, and no checkpoint is that of step {self.steps},"
        return wrong and f"{wrong} {invariants.shown(happened, output)}"

    @property
    def _reader(self) -> Callable[[Path], History] | None:
        of_logger = READERS.get(self.logger) if self.logger != "console" else None  # a log repeats steps after a resume
        return self.read or of_logger

    def _recorded(self, run_dir: Path) -> History:
        return invariants.recorded(run_dir, self._reader)


def took_effect(faults: Sequence[Fault], met: Collection[str], code: int | None) -> Iterator[Fault]:
    """Yield the faults that changed something, by the states that were met and by how the launch ended."""
    for fault in faults:
        kind = FAULTS[fault.kind]
        if kind.state in {"", *met} and (kind.is_seen or code != DONE):
            yield fault


def slowed(faults: Sequence[Fault]) -> float:
    return max((FAULTS[fault.kind].slows for fault in faults), default=1.0)


def temporary_files(run_dir: Path) -> set[tuple[str, int]]:
    found = set()
    folders_of_shards = (each for each in (run_dir / "checkpoints").glob("step-*") if each.is_dir())
    for file in (*(run_dir / "checkpoints").glob("*.tmp"), *folders_of_shards):
        with suppress(OSError):
            found.add((file.name, os.stat(file).st_ino))
    return found
