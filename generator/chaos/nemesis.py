"""Lets a schedule befall a run, resumes it after each end, and says in what it was not as it must be."""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from generator.chaos import invariants
from generator.chaos.clock import Clock
from generator.chaos.disk import failing_disk
from generator.chaos.faults import BY_ITSELF, DONE, FAILED, FAULTS, Machines, Need, NoVictim, Stateful, Surroundings
from generator.chaos.invariants import Calm, newest_step
from generator.chaos.job import Job, Starter
from generator.chaos.schedule import PROCESSES, STARTING, TOGETHER, TRAINING, Fault, Schedule, Start, draw
from generator.check.train.records import READERS, History

SAVE_EVERY = LOG_EVERY = 5  # steps
STEPS = 200  # of a run, which has time for AT_ONCE faults
AT_ONCE = 8
TIMEOUT = 30  # seconds: on a busy machine ranks may be far apart
ON_CPU = ("--device", "cpu", "--backend", "gloo", "--timeout", str(TIMEOUT))
OPTIONS = (*ON_CPU, "--epochs", "1000", "--log-every", str(LOG_EVERY))
# Threads of PyTorch's loader, which passes tensors on, and of TensorBoard print a traceback of their own when they end.
THREADS = ("resource_sharer", "event_file_writer")
STACK = ("frame #", "Exception raised from", "<omitting")  # of PyTorch's C++, which a lost store makes print much
SHOWN = 100  # lines of what a run has printed
BEGINS_WITHIN = 60.0  # seconds until a start trains
DONE_WITHIN = 600.0  # seconds in which a run trains that is left alone


class Unfit(Exception):
    """A project does not train even without faults."""


@dataclass
class Befallen:
    """What has happened in one start."""

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
    """How a run has come through."""

    schedule: Schedule
    befallen: list[Befallen] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def happened(self) -> list[Fault]:
        """The faults that found their victim."""
        return [fault for each in self.befallen for fault in each.happened]


@dataclass
class Nemesis:
    """What lets faults befall runs of one project."""

    project: Path
    start: Starter
    logger: str  # the answer to "logging"
    folder: Path  # for the runs
    kinds: Sequence[str]  # of FAULTS
    clock: Clock | None = None
    link: Stateful | None = None
    machines: Machines | None = None  # of a scheduler, which starts jobs that it has lost anew
    server: Stateful | None = None  # that takes the metrics
    hides: Collection[int] = ()  # codes by which a launcher hides that of the rank which failed first
    read: Callable[[Path], History] | None = None  # what reads the records, if not the reader of the logger
    options: Sequence[str] = ()  # of train.py
    steps: int = STEPS
    slowness: Callable[[], float] = lambda: 1.0  # of this machine, now: limits are multiples of it
    starts_in: float = 0.0  # seconds until a run without a fault has trained some steps

    @cached_property
    def calm(self) -> Calm:
        """A run without a fault. Raises Unfit if the project does not train."""
        run_dir, began = self.folder / "calm" / "run", time.monotonic()
        run_dir.parent.mkdir()
        job = self.start(run_dir, PROCESSES, [*OPTIONS, *self.options, "--max-steps", str(self.steps)])
        try:
            while not newest_step(run_dir) and job.code() is None:
                time.sleep(0.01)
            self.starts_in = time.monotonic() - began
            if (code := self._end_of(job, DONE_WITHIN)) != DONE:
                raise Unfit(f"exit code {code} without a fault: {job.output().strip()[-2000:]}")
        finally:
            job.end()
        return Calm(run_dir, self._recorded(run_dir))

    def befall_until(self, faults: int, seed: int) -> Iterator[Verdict]:
        """Draw schedules, from this seed on, until so many faults have happened; yield each verdict as it comes."""
        happened = 0
        while happened < faults:
            yield (verdict := self.befall(draw(seed, AT_ONCE, self.kinds)))
            happened += len(verdict.happened)
            seed += 1

    def befall(self, schedule: Schedule) -> Verdict:
        """Let a schedule befall a new run, until it is at its end."""
        verdict, calm = Verdict(schedule), self.calm
        if self.clock:
            self.clock.jump(0)  # back from where the run before has left it
        before = invariants.digests(self.project)
        place = next(place for number in range(1000) if not (place := self._place(schedule.seed, number)).exists())
        place.mkdir()
        with ExitStack() as stack:
            around = Surroundings(clock=self.clock, link=self.link, machines=self.machines, server=self.server)
            run_dir = files = place / "run"
            if any(FAULTS[fault.kind].need == Need.DISK for fault in schedule.faults):
                around.disk = stack.enter_context(failing_disk(place))
                run_dir, files = around.disk.mount / "run", around.disk.folder / "run"
            for start in [*schedule.starts, Start(schedule.starts[0].processes, {}, [])]:
                self._befall_start(start, run_dir, files, around, verdict)
                if verdict.wrong or verdict.befallen[-1].code == DONE:
                    break
        verdict.wrong += [] if verdict.wrong else self._wrong_at_the_end(files, calm, verdict)
        verdict.wrong += [] if before == invariants.digests(self.project) else ["a file of the project was changed"]
        return verdict

    def _place(self, seed: int, number: int) -> Path:
        return self.folder / f"seed-{seed}-{number}"

    def _befall_start(self, start: Start, run_dir: Path, files: Path, around: Surroundings, verdict: Verdict) -> None:
        before, began = newest_step(files), time.monotonic()
        job = self.start(run_dir, start.processes, self._options_of(start, resume=before > 0))
        try:
            happened = [fault for fault in start.faults if self._happens(fault, job, files, around, before)]
            ends = [
                FAULTS[fault.kind].patience for fault in happened if FAULTS[fault.kind].is_end and not self.machines
            ]
            code = self._end_of(job, max(ends, default=DONE_WITHIN))
            verdict.befallen.append(Befallen(start, happened, code, time.monotonic() - began))
            wrong = [] if code == DONE and newest_step(files) >= self.steps else self._wrong_end(job, happened, code)
            wrong += [
                f"a process is left: {left}"
                for left in (invariants.orphans(job, self.slowness()) if code is not None else [])
            ]
        finally:
            job.end()
            around.calm_down()
            if around.link:
                around.link.be("sound")
        wrong += [f"damaged: {file}" for file in invariants.damaged_checkpoints(files)]
        if (after := newest_step(files)) < before:
            wrong.append(f"the newest checkpoint was that of step {before}, and is that of step {after}")
        lost = invariants.last_step_told(job.output()) - after
        if lost > (limit := (2 if "async-saves" in start.options else 1) * SAVE_EVERY) and code != DONE:
            wrong.append(f"{lost} steps are lost, and {limit} may be")
        verdict.wrong += [f"start {len(verdict.befallen)}: {each}" for each in wrong]

    def _options_of(self, start: Start, *, resume: bool) -> list[str]:
        options = {"save-every": str(SAVE_EVERY), "max-steps": str(self.steps), **start.options}
        words = [word for name, value in options.items() for word in (f"--{name}", value) if word]
        return [*OPTIONS, *self.options, *words, *(["--resume"] if resume else [])]

    def _happens(self, fault: Fault, job: Job, files: Path, around: Surroundings, before: int) -> bool:
        """Wait for the moment, and let the fault happen. Returns whether it did: the run may end before."""
        deadline = time.monotonic() + BEGINS_WITHIN * self.slowness()
        old = _temporary_files(files)

        def is_time() -> bool:
            if fault.moment in (STARTING, TOGETHER):
                return bool(job.ranks())
            enough = newest_step(files) >= before + fault.saves * SAVE_EVERY
            return enough and (fault.moment == TRAINING or not _temporary_files(files) <= old)

        while not is_time():
            if job.code() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02 if fault.moment == STARTING else 0.002)
        time.sleep(fault.delay * (self.starts_in if fault.moment == STARTING else 1.0))
        try:
            FAULTS[fault.kind].act(job, around, fault.victim, fault.length)
        except NoVictim:
            return False
        return True

    def _end_of(self, job: Job, patience: float) -> int | None:
        """Wait for the end. Returns the exit code; None if it does not come in time."""
        deadline = time.monotonic() + patience * self.slowness()
        while (code := job.code()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def _wrong_at_the_end(self, files: Path, calm: Calm, verdict: Verdict) -> list[str]:
        ours, theirs = (invariants.load(run / "checkpoints" / "last.pt") for run in (files, calm.run_dir))
        if not verdict.schedule.is_exact:
            same = ours["progress"]["samples_seen"] == theirs["progress"]["samples_seen"]
            return [] if same else ["other samples were trained than without faults"]
        wrong = [f"{part} is another than without faults" for part in invariants.differing_parts(ours, theirs)]
        resumed, happened = len(verdict.befallen) > 1, {fault.kind for fault in verdict.happened}
        may_lack = resumed and not happened.isdisjoint(invariants.MAY_LACK.get(self.logger, ()))
        return wrong + invariants.wrong_records(self._recorded(files), calm.recorded, may_lack=may_lack)

    def _wrong_end(self, job: Job, happened: Sequence[Fault], code: int | None) -> list[str]:
        """Return in what the end of a start is none that its faults lead to."""
        names = ", ".join(fault.kind for fault in happened) or "nothing"
        output = job.output()
        lines = [line for line in output.splitlines() if not line.startswith(STACK)]
        shown = "\n".join([f"after {names}", *lines[-SHOWN:]])
        if code is None:
            return [f"it does not end {shown}"]
        if code == DONE:
            return [f"it is done, and no checkpoint is that of step {self.steps}, {shown}"]
        ends = [FAULTS[fault.kind].ends for fault in happened]
        if not any(code in each for each in [*ends, self.hides]):
            return [f"exit code {code} {shown}"]
        wrong = []
        causes = [each[code] for each in ends if code in each]
        if code in self.hides:
            causes += [cause for each in ends for cause in each.values()]
        if not any(re.search(cause, output, re.DOTALL) for cause in causes):
            wrong.append(f"exit code {code}, and no line that has the cause, {shown}")
        hidden = code in self.hides and any(FAILED in each for each in ends)
        by_itself = code in BY_ITSELF and not hidden
        if by_itself and "Traceback (most" in output and not any(thread in output for thread in THREADS):
            wrong.append(f"a traceback {shown}")
        return wrong

    def _recorded(self, run_dir: Path) -> History:
        of_logger = READERS.get(self.logger) if self.logger != "console" else None  # a log has all that was ever told
        return invariants.recorded(run_dir, self.read or of_logger)


def _temporary_files(run_dir: Path) -> set[tuple[str, int]]:
    found = set()
    for file in (run_dir / "checkpoints").glob("*.tmp"):
        with suppress(OSError):
            found.add((file.name, os.stat(file).st_ino))
    return found
