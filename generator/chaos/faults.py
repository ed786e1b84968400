"""The faults: what each does to a run, and how the run may end for it."""

import math
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import psutil

from generator.chaos.job import Job, loader_workers
from generator.chaos.surroundings import HOUR, Stateful, Surroundings

# Codes of the exits.py of every project, and of a shell.
DONE, FAILED, REFUSED, LOST, STOPPED = 0, 1, 2, 69, 75
BY_ITSELF = (REFUSED, LOST, STOPPED)  # with a line for the user
KILLED, HUNG_UP = 128 + signal.SIGKILL, 128 + signal.SIGHUP
ABORTED, CRASHED = 128 + signal.SIGABRT, 128 + signal.SIGSEGV
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
HEADROOM = 1 << 20  # bytes that a process may still take when its memory is limited
FEWEST = 0.4  # cores of a quota, of which one is the most


class Need(Enum):
    """What a fault needs in addition to ranks."""

    NOTHING = 0
    LAUNCHER = 1
    DISK = 2
    CLOCK = 3
    LINK = 4
    MACHINES = 5
    SERVER = 6
    TERMINAL = 7
    LIMIT = 8  # on the memory of another process, which Linux has
    # These are separate needs: a longer list of kinds would change which faults a seed draws.
    LOADER = 9  # loader workers that follow orders, on Linux
    SHM = 10
    QUOTA = 11


class NoVictim(Exception):
    """The target of a fault is missing or has gone."""


GONE = (NoVictim, ProcessLookupError, psutil.NoSuchProcess)  # what an act raises if it has no victim

Chooser = Callable[[Job, float], psutil.Process]  # takes the victim, from 0 to 1
Act = Callable[[Job, Surroundings, float, float], None]  # also takes victim and length (seconds) of a fault


@dataclass(frozen=True)
class Kind:
    act: Act
    exits: Mapping[int, str] = field(default_factory=dict)  # exit codes, each with a pattern of the output
    is_end: bool = False  # whether the run ends with it
    weight: int = 2  # how often it is drawn
    patience: float = 15.0  # seconds until the run ends, if it does
    need: Need = Need.NOTHING
    options: Mapping[str, str] = field(default_factory=dict)  # that it needs to find a victim
    state: str = ""  # of disk, data or quota: the fault counts once it has changed a call
    is_seen: bool = True  # whether it counts even if the run completes
    slows: float = 1.0  # factor for the time limits of the run


def one_of(processes: Sequence[psutil.Process], victim: float) -> psutil.Process:
    """Return the process that a fault hits. Raises NoVictim if there is none."""
    if not processes:
        raise NoVictim
    return processes[int(victim * len(processes))]


def a_rank(job: Job, victim: float) -> psutil.Process:
    return one_of(job.ranks(), victim)


def a_loader_worker(job: Job, victim: float) -> psutil.Process:
    return one_of([worker for rank in job.ranks() for worker in loader_workers(rank)], victim)


def loaders(job: Job, victim: float) -> tuple[int | None, list[psutil.Process]]:
    """Return a rank and its loader workers; for every other victim, None and the workers of all ranks."""
    ranks = job.ranks() if int(victim * 1000) % 2 else [a_rank(job, victim)]
    workers = [worker for rank in ranks for worker in loader_workers(rank)]
    one_of(workers, 0.0)
    return job.number_of(ranks[0]) if len(ranks) == 1 else None, workers


def a_launcher(job: Job, victim: float) -> psutil.Process:
    return one_of(job.launchers(), victim)


def kill(choose: Chooser) -> Act:
    def act(job: Job, around: Surroundings, victim: float, length: float) -> None:
        process = choose(job, victim)
        number = job.number_of(process)
        process.kill()
        around.hit = number

    return act


def kill_everything(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Send KILL to all processes at once, like a power failure."""
    one_of(processes := job.processes(), victim)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def stop(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Send one of the stop signals, chosen by the length."""
    may_be_sent_to = [*job.launchers(), *job.ranks()]  # by a user or a scheduler
    one_of(may_be_sent_to, victim).send_signal(STOPS[int(length * 1000) % len(STOPS)])


def stop_twice(job: Job, around: Surroundings, victim: float, length: float) -> None:
    stop(job, around, victim, length)
    time.sleep(length / 5)
    with suppress(*GONE):
        stop(job, around, 1 - victim, length / 3)


def close_terminal(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Send HUP to the process group of the launcher, as a shell does when its terminal is closed."""
    os.killpg(a_launcher(job, victim).pid, signal.SIGHUP)


def freeze_for_good(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Suspend a rank for good: the others wait for it until --timeout."""
    ranks = job.ranks()
    process = one_of(ranks if len(ranks) > 1 else [], victim)  # a single rank has nobody who waits for it
    around.change(process.pid, process.suspend, lambda: None, math.inf)
    around.hit = job.number_of(process)


def freeze(choose: Chooser) -> Act:
    """Suspend a process for some time, as a debugger or a swapping machine does."""

    def act(job: Job, around: Surroundings, victim: float, length: float) -> None:
        process = choose(job, victim)
        around.change(process.pid, process.suspend, lambda: thaw(process), length)

    return act


def thaw(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


def spoil(part: str, state: str, *, for_good: bool = False) -> Act:
    """Put a part of the surroundings ("disk", "link" or "server") into a state, for some time or for good."""

    def act(job: Job, around: Surroundings, victim: float, length: float) -> None:
        spoiled: Stateful = getattr(around, part)
        until = math.inf if for_good else length
        around.change(part, lambda: spoiled.set_state(state), lambda: spoiled.set_state("sound"), until)

    return act


def take_machine(job: Job, around: Surroundings, victim: float, length: float) -> None:
    assert around.machines
    around.machines.take(job, victim)
    around.later(length, around.machines.restore)


def limit_memory(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Limit the memory of a rank to what it uses, plus HEADROOM."""
    process = a_rank(job, victim)
    size = process.memory_info().vms + HEADROOM
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_AS)  # which only root may raise
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (size, hard))


def freeze_loader_for_good(job: Job, around: Surroundings, victim: float, length: float) -> None:
    """Suspend the loader workers for good, as a file system that does not answer would."""
    around.hit, workers = loaders(job, victim)
    for worker in workers:
        around.change(worker.pid, worker.suspend, lambda: None, math.inf)


def spoil_data(state: str) -> Act:
    def act(job: Job, around: Surroundings, victim: float, length: float) -> None:
        assert around.data
        around.hit, workers = loaders(job, victim)
        around.data.set_state(state, [worker.pid for worker in workers])

    return act


def limit_files(job: Job, around: Surroundings, victim: float, length: float) -> None:
    around.hit, workers = loaders(job, victim)
    for worker in workers:
        _, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        try:
            taken = {int(name) for name in os.listdir(f"/proc/{worker.pid}/fd")}
        except FileNotFoundError as error:
            raise NoVictim from error
        free = next(number for number in count() if number not in taken)
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (free, hard))


def fill_shm(job: Job, around: Surroundings, victim: float, length: float) -> None:
    assert around.shm
    around.shm.fill(a_rank(job, victim).pid)


def limit_time(job: Job, around: Surroundings, victim: float, length: float) -> None:
    assert around.quota
    around.quota.limit(FEWEST + (1 - FEWEST) * victim)


def jump(job: Job, around: Surroundings, victim: float, length: float) -> None:
    assert around.clock
    around.clock.jump(int((2 * victim - 1) * HOUR))  # at the furthest


WORKERS = {"workers": "1"}
VICTIM = r"(?#victim)\d+"  # in a pattern: the rank that the output must name
# torchrun, Open MPI, MPICH and Slurm each report a lost rank in other words.
LOST_LINE = (
    rf"rank {VICTIM} (is silent|has ended|does not come)|store at which the ranks met is silent"
    r"|SIGKILL|[Ss]ignal:? 9|KILLED|task \d+: Killed"
)
LOADER_LINE = rf"rank {VICTIM}: a process that loads its data has gone"
KILL_EXITS = {LOST: LOST_LINE, KILLED: LOST_LINE}
FREEZE_EXITS = {**KILL_EXITS, REFUSED: r"error: rank \d+ could not meet the others"}
SERVER_EXITS = {REFUSED: "error: .* does not start with"}
UNSENDABLE_EXITS = {code: r"error: [^\n]*(pickle|requires? grad|function)" for code in (REFUSED, LOST)}
STUCK_EXITS = {LOST: rf"rank {VICTIM}\b[^\n]*(has waited \d+ s for [^\n]*worker|does not come: it is loading data)"}
FILES_EXITS = {code: r"error: [^\n]*([Tt]oo many open files|ulimit -n)" for code in (REFUSED, LOST)}
SHM_EXITS = {code: r"error: [^\n]*/dev/shm" for code in (REFUSED, LOST)}
TAKEN_EXITS = {LOST: LOST_LINE + "|a node is lost", KILLED: LOST_LINE}  # Ray restarts no job that is to stop
CUT = spoil("link", "cut", for_good=True)
CUT_EXITS = {LOST: LOST_LINE + "|node 0 is lost|has been out of reach"}
# How a failed allocation shows: imports and oneDNN raise other errors, and C and C++ may only abort the program.
NO_MEMORY = (
    "MemoryError|bad_alloc|[Cc]an('t|not) (allocate memory|start new thread)|failed to map|create a primitive"
    "|SystemError: error return without exception set"
)
# If a thread fails before it starts, Python's start() waits forever, and the other ranks lose this rank.
MEMORY_EXITS = {
    REFUSED: r"rank \d+ is out of memory",
    FAILED: NO_MEMORY,
    LOST: LOST_LINE,
    ABORTED: "",
    CRASHED: "",
    127: NO_MEMORY,
}
# A signal before the training ends the program as any program: the output has no metrics yet.
BEFORE_TRAINING = r"\A(?!.* INFO step \d)"
# If a rank is killed before it has stopped, the launcher knows only the signal.
KILLED_LINE = f"{BEFORE_TRAINING}|{LOST_LINE}|ranks did not stop"
STOP_EXITS = {STOPPED: "stopped after step"} | {128 + number: KILLED_LINE for number in STOPS}


def disk_that_is(state: str, reason: str = "") -> Kind:
    """Return the fault that puts the disk into a state; `reason` is the error of calls that fail."""
    exits = {REFUSED: rf"error: [^\n]*({reason})"} if reason else {}
    return Kind(spoil("disk", state), exits, need=Need.DISK, state=state)


def loader_that_fails(act: Act, exits: Mapping[int, str], *, need: Need = Need.LOADER, state: str = "") -> Kind:
    """Return a fault after which a rank gets no more batches: the rank must end, unless it had all of them."""
    return Kind(act, exits, is_end=True, patience=90.0, need=need, options=WORKERS, state=state, is_seen=bool(state))


FAULTS: Mapping[str, Kind] = {
    "kill a rank": Kind(kill(a_rank), KILL_EXITS, is_end=True, weight=4),
    "kill a loader worker": Kind(kill(a_loader_worker), {LOST: LOADER_LINE}, weight=3, options=WORKERS),
    "kill the launcher": Kind(kill(a_launcher), {KILLED: ""}, is_end=True, need=Need.LAUNCHER),
    "kill everything": Kind(kill_everything, {KILLED: ""}, is_end=True),
    "stop": Kind(stop, STOP_EXITS, is_end=True, weight=3),
    "stop twice": Kind(stop_twice, STOP_EXITS, is_end=True),
    "close the terminal": Kind(close_terminal, STOP_EXITS | {HUNG_UP: ""}, is_end=True, need=Need.TERMINAL),
    "freeze a rank for a moment": Kind(freeze(a_rank)),
    "freeze a rank for good": Kind(freeze_for_good, FREEZE_EXITS, is_end=True, weight=1, patience=90.0),
    "freeze a loader worker": Kind(freeze(a_loader_worker), weight=1, options=WORKERS),
    "freeze the launcher": Kind(freeze(a_launcher), need=Need.LAUNCHER),
    # SQLite, the store of MLflow, reports errors in its own words.
    "full disk": disk_that_is("full", "No space left on device|disk is full"),
    "failing disk": disk_that_is("failing", "Input/output error|disk I/O error"),
    "read-only disk": disk_that_is("read-only", "Read-only file system|readonly database|open database file"),
    "short writes": disk_that_is("short"),
    "slow disk": disk_that_is("slow"),
    "little memory": Kind(limit_memory, MEMORY_EXITS, weight=1, need=Need.LIMIT),
    "clock jumps": Kind(jump, need=Need.CLOCK),
    "link cut for good": Kind(CUT, CUT_EXITS, is_end=True, need=Need.LINK, weight=1, patience=90.0),
    "link cut for a moment": Kind(spoil("link", "cut"), need=Need.LINK),
    "slow link": Kind(spoil("link", "slow"), need=Need.LINK),
    "lossy link": Kind(spoil("link", "lossy"), need=Need.LINK),
    "no tracking server": Kind(spoil("server", "gone"), SERVER_EXITS, need=Need.SERVER),
    "silent tracking server": Kind(spoil("server", "silent"), SERVER_EXITS, need=Need.SERVER),
    "take a machine": Kind(take_machine, TAKEN_EXITS, is_end=True, need=Need.MACHINES),
    "data that no worker can send": loader_that_fails(spoil_data("unsendable"), UNSENDABLE_EXITS, state="unsendable"),
    "data that never comes": loader_that_fails(spoil_data("stuck"), STUCK_EXITS, state="stuck"),
    "freeze a loader for good": loader_that_fails(freeze_loader_for_good, STUCK_EXITS),
    "few open files": loader_that_fails(limit_files, FILES_EXITS),
    "full shared memory": loader_that_fails(fill_shm, SHM_EXITS, need=Need.SHM),
    "CPU quota": Kind(limit_time, need=Need.QUOTA, state="throttled", slows=1 / FEWEST),
}


def possible_faults(*needs: Need) -> list[str]:
    """Return the faults that can happen with these needs met, and with what this system has anyway."""
    there = (Need.NOTHING, *([Need.LIMIT] if hasattr(resource, "prlimit") else []), *needs)
    return [name for name, kind in FAULTS.items() if kind.need in there]
