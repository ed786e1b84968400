"""Schedules of faults for a run: drawn from a seed, so that you can repeat and shrink them."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from generator.chaos.faults import FAULTS

STARTING, TRAINING, SAVING, TOGETHER = "starting", "training", "saving", "together"
# Weight of each moment, and the longest delay after it: in seconds, or (STARTING) in times of a launch.
MOMENTS = {STARTING: (2, 0.7), TRAINING: (5, 0.05), SAVING: (3, 0.004), TOGETHER: (2, 0.3)}
PROCESSES = 2
NUMBERS = (1, 2, 4)  # of processes
CHANGES_NUMBER = 0.2  # share of the runs whose launches have other numbers
EDITS: Sequence[dict[str, str]] = (  # options that do not change weights
    {},
    {"workers": "1"},
    {"workers": "2"},
    {"save-every": "3"},
    {"keep": "1"},
    {"async-saves": ""},
    {"workers": "1", "async-saves": ""},
)
MOST_FAULTS = 3  # of a launch
MOST_SAVES = 3  # before a fault
SHORTEST, LONGEST = 0.05, 1.0  # seconds, of a fault that passes
TRIES = 2  # of a smaller schedule, since the same faults need not have the same effect twice


@dataclass(frozen=True)
class Fault:
    number: int  # its position in the schedule
    kind: str  # of FAULTS
    moment: str  # of MOMENTS; "together" is the moment of the previous fault
    saves: int  # checkpoints before it, if the moment is in the training or in a save
    delay: float  # after the moment
    victim: float  # from 0 to 1: which of the possible processes
    length: float  # seconds, if the fault passes

    def __str__(self) -> str:
        after = f" after {self.saves} saves" if self.moment in (TRAINING, SAVING) else ""
        return f"{self.number} {self.kind} ({self.moment}{after})"


@dataclass(frozen=True)
class Start:
    processes: int
    options: Mapping[str, str]
    faults: Sequence[Fault]


@dataclass(frozen=True)
class Schedule:
    seed: int
    starts: Sequence[Start]

    @property
    def faults(self) -> list[Fault]:
        return [fault for start in self.starts for fault in start.faults]

    @property
    def numbers(self) -> str:
        """The numbers of its faults, as --only takes them."""
        return ",".join(str(fault.number) for fault in self.faults)

    @property
    def is_exact(self) -> bool:
        """Return whether all launches have the usual number of processes, so that every bit of the weights is known."""
        return all(start.processes == PROCESSES for start in self.starts)

    def only(self, numbers: Collection[int]) -> "Schedule":
        """Return the schedule with these faults alone, without launches that have none of them."""
        kept = [[fault for fault in start.faults if fault.number in numbers] for start in self.starts]
        starts = zip(self.starts, kept, strict=True)
        return replace(self, starts=[replace(start, faults=faults) for start, faults in starts if faults])

    def fitted(self, kinds: Collection[str], numbers: Collection[int]) -> "Schedule":
        """Return the schedule with faults of these kinds alone, and the usual number of processes instead of others."""
        starts = [start if start.processes in numbers else replace(start, processes=PROCESSES) for start in self.starts]
        fitting = {fault.number for fault in self.faults if fault.kind in kinds}
        return replace(self, starts=starts).only(fitting)


def draw(seed: int, faults: int, kinds: Sequence[str]) -> Schedule:
    """Draw a schedule of some faults of these kinds. Other kinds give another schedule for the same seed."""
    chance = random.Random(seed)
    processes = NUMBERS if chance.random() < CHANGES_NUMBER else (PROCESSES,)
    numbers = iter(range(faults))
    starts: list[Start] = []
    while (left := faults - sum(len(start.faults) for start in starts)) > 0:
        here = [_draw_fault(next(numbers), kinds, chance) for _ in range(chance.randint(1, min(left, MOST_FAULTS)))]
        options = {name: value for fault in here for name, value in FAULTS[fault.kind].options.items()}
        starts.append(Start(chance.choice(processes), options | chance.choice(EDITS), [*_in_order(here)]))
    return Schedule(seed, starts)


def _draw_fault(number: int, kinds: Sequence[str], chance: random.Random) -> Fault:
    kind = chance.choices(kinds, [FAULTS[kind].weight for kind in kinds])[0]
    moment = chance.choices([*MOMENTS], [weight for weight, _ in MOMENTS.values()])[0]
    delay = chance.uniform(0, MOMENTS[moment][1])
    saves, length = chance.randint(1, MOST_SAVES), chance.uniform(SHORTEST, LONGEST)
    return Fault(number, kind, moment, saves, delay, chance.random(), length)


def _in_order(faults: Sequence[Fault]) -> Iterator[Fault]:
    """Yield faults that pass before faults that end the launch. The first one cannot be TOGETHER with another."""
    ordered = sorted(faults, key=lambda fault: FAULTS[fault.kind].is_end)
    for place, fault in enumerate(ordered):
        yield replace(fault, moment=TRAINING) if place == 0 and fault.moment == TOGETHER else fault


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out faults one by one while the rest still fails; the last first, since it mostly comes too late."""
    for fault in schedule.faults[::-1]:
        smaller = schedule.only({other.number for other in schedule.faults} - {fault.number})
        if smaller.starts and any(fails(smaller) for _ in range(TRIES)):
            schedule = smaller
    return schedule
