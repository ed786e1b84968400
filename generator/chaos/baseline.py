"""A run that nothing befalls: what others are compared with, and how fast a project is on this machine."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from generator.answers.combinations import SelectionError
from generator.chaos.faults import DONE, STOPPED
from generator.chaos.invariants import newest_step
from generator.chaos.job import Job
from generator.chaos.schedule import OTHER_NUMBERS
from generator.check.train.records import History

SAVE_EVERY = 5  # steps
LOOKS_EVERY = 0.1  # seconds: each look reads all that a run has printed
USUAL = 0.25  # seconds between two saves, for which the lengths of faults are made
SLOWEST = 5.0  # times as long as that a fault lasts at most: what passes must not take as long as --timeout


class UnsuitableProject(SelectionError):
    """A project whose runs do not tell what a fault has changed."""


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
        """Return how many times as long a fault must last here to last as long as in a run of the usual pace."""
        return min(max(1.0, self.interval / USUAL), SLOWEST)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of processes among which its global batch can be divided."""
        config = json.loads((self.run_dir / "config.json").read_text())
        size, accum_steps = config.get("global_batch_size", 0), config.get("accum_steps", 1)
        return [number for number in OTHER_NUMBERS if size % (number * accum_steps) == 0]

    @property
    def size(self) -> int:
        """Return how many bytes its run directory takes, each file counted once, whatever its names are."""
        files = [os.lstat(Path(folder, name)) for folder, _, names in os.walk(self.run_dir) for name in names]
        return sum({stat.st_ino: stat.st_size for stat in files}.values())


class Watch:
    """Looks at a run now and then: its newest checkpoint, and for how long it has made no progress."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self.job = job
        self.run_dir = run_dir
        self.step = 0
        self.printed = 0  # characters
        self.looked = 0.0  # time.monotonic(), as the next one
        self.moved = time.monotonic()

    def silence(self) -> float:
        """Return for how many seconds there was neither a checkpoint nor a word."""
        now = time.monotonic()
        if now > self.looked + LOOKS_EVERY:
            step, printed, self.looked = newest_step(self.run_dir), len(self.job.output()), now
            if (step, printed) != (self.step, self.printed):
                self.step, self.printed, self.moved = step, printed, now
        return now - self.moved


def follow(job: Job, run_dir: Path, steps: int, limit: float) -> tuple[float, float, float]:
    """Wait until a run without a fault is done; return starts_in, interval and silence of a baseline.

    Raises UnsuitableProject if it takes too long, or ends otherwise.
    """
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
