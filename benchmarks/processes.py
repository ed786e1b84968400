"""Runs a command, and watches how much memory its processes take."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .failures import CommandError

INTERVAL = 0.05  # seconds between two looks at the processes


@dataclass(frozen=True)
class Ended:
    """What a command took."""

    printed: str
    wall: float  # seconds
    peak_memory: int  # bytes: the largest sum of the resident sets of its processes; shared pages count for each


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> Ended:
    """Run a command to its end. Raises CommandError if its exit code is not 0."""
    output = folder / "printed.txt"
    started = time.perf_counter()
    with open(output, "w") as file:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    peak = 0
    try:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(INTERVAL)
    finally:
        process.terminate()  # which does nothing where it has ended
        process.wait()
    wall = time.perf_counter() - started
    if process.returncode:
        raise CommandError(output.read_text())
    return Ended(output.read_text(), wall, peak)


def resident(pid: int) -> int:
    """The memory of a process and of all that it has started, now; 0 where it has just ended."""
    try:
        process = psutil.Process(pid)
        return sum(resident_alone(each) for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def resident_alone(process: psutil.Process) -> int:
    """The memory of one process, 0 where it has just ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
