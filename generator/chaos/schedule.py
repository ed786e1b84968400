"""What happens to a run, and when: drawn from a seed, so that it can be repeated and made smaller."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from generator.chaos.faults import FAULTS

STARTING, TRAINING, SAVING, TOGETHER = "starting", "training", "saving", "together"
# How often a fault comes at which moment, and how long after it at most: seconds, or times that a start takes.
MOMENTS = {STARTING: (2, 0.7), TRAINING: (5, 0.05), SAVING: (3, 0.004), TOGETHER: (2, 0.3)}
PROCESSES = 2
NUMBERS = (1, 2, 4)  # of processes
CHANGES_NUMBER = 0.2  # share of the runs whose starts have other numbers
EDITS: Sequence[dict[str, str]] = (  # options that no weight depends on
    {},
    {"workers": "1"},
    {"workers": "2"},
    {"save-every": "3"},
    {"keep": "1"},
    {"async-saves": ""},
    {"workers": "1", "async-saves": ""},
)
MOST_FAULTS = 3  # of a start
MOST_SAVES = 3  # before a fault comes
SHORTEST, LONGEST = 0.05, 1.0  # seconds, of what passes
TRIES = 2  # of a smaller schedule: what happens at the same moment need not do the same


@dataclass(frozen=True)
class Fault:
    number: int  # its place in the schedule
    kind: str  # of FAULTS
    moment: str  # of MOMENTS; "together" is that of the fault before
    saves: int  # checkpoints that are written before, if it is to come in the training or in a save
    delay: float  # from the moment on
    victim: float  # from 0 to 1: which of the processes that it may befall
    length: float  # seconds, for what passes

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
        """Whether all starts have the usual number of processes, so that every bit of the weights is known."""
        return all(start.processes == PROCESSES for start in self.starts)

    def only(self, numbers: Collection[int]) -> "Schedule":
        """Return it with these faults alone; a start without any goes, too."""
        kept = [[fault for fault in start.faults if fault.number in numbers] for start in self.starts]
        starts = zip(self.starts, kept, strict=True)
        return replace(self, starts=[replace(start, faults=faults) for start, faults in starts if faults])

    def fitted(self, kinds: Collection[str], numbers: Collection[int]) -> "Schedule":
        """Return it with faults of these kinds alone, and the usual number of processes for those that cannot be."""
        starts = [start if start.processes in numbers else replace(start, processes=PROCESSES) for start in self.starts]
        fitting = {fault.number for fault in self.faults if fault.kind in kinds}
        return replace(self, starts=starts).only(fitting)


def draw(seed: int, faults: int, kinds: Sequence[str]) -> Schedule:
    """Draw a schedule of some faults, of kinds that may happen to the run at hand: with others, it is another one."""
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
    """Yield what passes first, and then what ends the start; the first cannot come together with another."""
    ordered = sorted(faults, key=lambda fault: FAULTS[fault.kind].is_end)
    for place, fault in enumerate(ordered):
        yield replace(fault, moment=TRAINING) if place == 0 and fault.moment == TOGETHER else fault


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out fault after fault, as long as the rest still fails; the last first, which mostly came too late."""
    for fault in schedule.faults[::-1]:
        smaller = schedule.only({other.number for other in schedule.faults} - {fault.number})
        if smaller.starts and any(fails(smaller) for _ in range(TRIES)):
            schedule = smaller
    return schedule
