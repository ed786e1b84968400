"""Runs for the nemesis with forked ranks, which start twenty times faster than ranks of a launcher."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from generator.chaos import faulty_dataset
from generator.chaos.job import Job, Starter
from generator.chaos.nemesis import Nemesis
from generator.chaos.surroundings import SHM, Surroundings
from tests.support.ranks import Rank, run_train, start_ranks

GRACE = 20.0  # seconds until ranks end after the first failure, as with launchers
OFTEN = 6  # a kind that is drawn this many times must happen once
GROUP, OWN_SHM = "DDP_CHAOS_GROUP", "DDP_CHAOS_SHM"  # variables for run_in_session()
CLONE_NEWNS = 0x20000  # of Linux
# An end of the data.py of a project: each shard has one digit more than the one before; the last ones may be empty.
STREAM = """

from functools import partial

from .runtime import Data, Stream

load_digits = load_data


def read(digits: Digits, shard: int) -> range:
    first = shard * (shard - 1) // 2
    return range(first, min(first + shard, len(digits)))


def load_data(config: Config) -> Data:
    streams = [Stream(range(55), partial(read, each), each.__getitem__, shuffle=300) for each in load_digits(config)]
    return Data(*streams)
"""


def run_in_session() -> None:
    """Run a rank in a new session, by which its children are found, and in the surroundings of the variables."""
    os.setsid()
    if group := os.environ.get(GROUP):
        Path(group, "cgroup.procs").write_text("0")
    if OWN_SHM in os.environ:
        mount_own_shm()
    if faulty_dataset.ORDERS in os.environ:
        faulty_dataset.install()
    multiprocessing.set_start_method("fork", force=True)  # a forked process inherits the method of its forking process
    run_train()


def mount_own_shm() -> None:
    """Mount a private /dev/shm for this process and its children. Python has unshare() from 3.12 on."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS):
        raise OSError("no /dev/shm of its own")
    for words in (("--make-rprivate", "/"), ("-t", "tmpfs", "ddp-chaos", SHM)):
        subprocess.run(["mount", *words], check=True)


def streaming(project: Path) -> Sequence[str]:
    """Let a project train and evaluate on streams of its digits, and return the options for this."""
    with open(project / "ddp_project" / "data.py", "a") as file:
        file.write(STREAM)
    return "--steps", "1000"  # more than any run has


@dataclass
class ForkedJob(Job):
    run_dir: Path
    started: list[Rank]
    failed: float | None = None  # time.monotonic() at which a rank had failed
    late: set[int | None] = field(default_factory=set)  # process IDs of ranks that were killed because others failed

    def launchers(self) -> list[psutil.Process]:
        return []

    def ranks(self) -> list[psutil.Process]:
        alive = []
        for rank in self.started:
            with suppress(psutil.NoSuchProcess):
                if rank.process.is_alive():
                    alive.append(psutil.Process(rank.process.pid))
        return alive

    def number_of(self, process: psutil.Process) -> int | None:
        """Return the rank of a process. The environment that Linux shows lacks the variables of forked ranks."""
        return next((number for number, rank in enumerate(self.started) if rank.process.pid == process.pid), None)

    def processes(self) -> list[psutil.Process]:
        sessions = {rank.process.pid for rank in self.started}
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def code(self) -> int | None:
        """Return the code of the first rank that failed, and kill the others after some seconds."""
        codes = [rank.process.exitcode for rank in self.started]
        failures = [code for code in codes if code]
        if failures and self.failed is None:
            self.failed, self.first = time.monotonic(), failures[0]
        if self.failed is not None and time.monotonic() > self.failed + GRACE:
            for rank in self.started:
                self.late |= {rank.process.pid} if rank.process.is_alive() else set()
                rank.process.kill()
        if None in codes:
            return None
        if failures and self.first < 0:
            return 128 - min(failures)
        return self.first if failures else 0

    def output(self) -> str:
        printed = [rank.output.read_text(errors="replace") for rank in self.started if rank.output.exists()]
        killed = [rank for rank in self.started if rank.process.exitcode == -signal.SIGKILL]
        told = [rank for rank in killed if rank.process.pid not in self.late]
        return "".join(printed) + "a rank was ended by SIGKILL\n" * len(told)  # as a launcher would report


def forked(project: Path, outputs: Path, around: Surroundings | None = None) -> Starter:
    """Return a function that starts a project on forked ranks in these surroundings. Output goes to a folder."""
    variables = {**around.variables} if around else {}
    variables |= {GROUP: str(around.quota.folder)} if around and around.quota else {}
    variables |= {OWN_SHM: "1"} if around and around.shm else {}

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        how: dict[str, Any] = {"env": variables, "entry": run_in_session, "outputs": outputs}
        return ForkedJob(run_dir, start_ranks(project, run_dir, *options, processes=processes, **how))

    return start


def befall(nemesis: Nemesis, faults: int, seed: int) -> Counter[str]:
    """Let faults happen from a seed on, and count them. Fails if one is not survived, or one often drawn never came."""
    happened: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    for verdict in nemesis.run_until(faults, seed):
        story = "\n".join([f"seed {verdict.schedule.seed}", *map(str, verdict.results), *verdict.wrong])
        assert not verdict.wrong, story
        happened.update(fault.kind for fault in verdict.happened)
        drawn.update(fault.kind for each in verdict.results for fault in each.start.faults)
    never = [f"{kind}, drawn {times} times" for kind, times in drawn.items() if times >= OFTEN and not happened[kind]]
    assert not never, f"never happened: {'; '.join(never)}"
    return happened
