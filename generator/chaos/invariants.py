"""What must be true of a run after faults: how a launch may end, and what it must leave behind."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from generator.chaos.faults import BY_ITSELF, FAILED, FAULTS, VICTIM
from generator.chaos.job import Job, command_of
from generator.chaos.schedule import Fault
from generator.check.train.records import OF_CLOCK, History
from generator.check.train.shards import read_whole
from generator.check.train.verification import digest

ORPHANS = 10.0  # seconds after a run until all of its processes must be gone
START = ("config", "code")  # parts of a checkpoint that describe the launch, not the run
COUNTED = ("step", "epoch", "samples_in_epoch", "samples_seen", "stream")  # in the progress, the same on any ranks
# The faults after which a resumed run may lack records, by logger. A kill or a bad disk loses what the process of W&B
# has in memory. A killed rank loses what the server of MLflow has not taken.
MAY_LACK = {
    "wandb": {"kill everything", "full disk", "failing disk", "read-only disk"},
    "mlflow": {"no tracking server", "silent tracking server"},
}
KILLED_ALONG = {"wandb"}  # loggers whose process ends without a write when its rank is killed
NOT_THE_OWNERS = {"__pycache__", ".git", ".venv", "runs", ".mypy_cache", ".ruff_cache", ".pytest_cache"}  # folders
# Threads that print a separate traceback when they end: of PyTorch's loader, for tensors, and of TensorBoard.
THREADS = ("resource_sharer", "event_file_writer")
TRACEBACK = "Traceback (most"
# If a rank is alive but does not reach a collective, another rank prints a traceback of where it waits.
ON_PURPOSE = f"a collective has failed\n{TRACEBACK}"
STACK = ("frame #", "Exception raised from", "<omitting")  # of PyTorch's C++, long after a lost store
SHOWN = 100  # last lines of the output of a run
Files = Mapping[str, tuple[int, int, int]]  # size, modification time and inode, by path


def newest_step(run_dir: Path) -> int:
    return max((int(file.stem[5:]) for file in (run_dir / "checkpoints").glob("step-*.pt")), default=0)


def last_step_told(output: str) -> int:
    return max(map(int, re.findall(r" INFO step (\d+) ", output)), default=0)


def damaged_checkpoints(run_dir: Path) -> list[str]:
    """Return the names of the checkpoints that do not load, or whose SHA-256 the manifest does not have."""
    files = sorted((run_dir / "checkpoints").glob("*.pt"))
    if not files:
        return []
    try:
        known = json.loads((run_dir / "checkpoints" / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return [f"manifest.json: {error}"]
    damaged = [file.name for file in files if hashlib.sha256(file.read_bytes()).hexdigest() not in known]
    for file in files:
        try:
            read_whole(file)
        except Exception as error:  # damaged bytes raise nearly anything
            damaged.append(f"{file.name}: {error}")
    return damaged


def orphans(job: Job, slowness: float) -> list[str]:
    deadline = time.monotonic() + ORPHANS * max(1.0, slowness / 2)
    while left := job.processes():
        if time.monotonic() > deadline:
            return [f"{process.pid} {' '.join(command_of(process))[:200]}" for process in left]
        time.sleep(0.02)
    return []


def recorded(run_dir: Path, read: Callable[[Path], History] | None) -> History:
    """Return the records that a reader finds in a run, without those that depend on the clock."""
    history = read(run_dir) if read else {}
    return {name: values for name, values in history.items() if not name.startswith(OF_CLOCK)}


def wrong_records(found: History, baseline: History, *, may_lack: bool = False) -> list[str]:
    """Return the differences between the records of a run and of the baseline, which has each step once."""
    wrong = []
    for name in sorted(found.keys() | baseline.keys()):
        here, there = found.get(name, []), baseline.get(name, [])
        if may_lack:
            there = [pair for pair in there if pair[0] in dict(here)]
        steps, expected = [step for step, _ in here], [step for step, _ in there]
        if twice := sorted({step for step in steps if steps.count(step) > 1}):
            wrong.append(f"{name} is recorded more than once at step {twice[0]}")
        elif missing := sorted({*expected} - {*steps}):
            wrong.append(f"{name} is not recorded at step {missing[0]}")
        elif here != there:
            pairs = zip_longest(here, there, fillvalue=(0, 0.0))
            wrong.append(f"{name} is another from step {next(pair[0] for pair, other in pairs if pair != other)} on")
    return wrong


def only_steps(history: History) -> History:
    """Return the steps of the records without values, which depend on the number of processes."""
    return {name: [(step, 0.0) for step, _ in pairs] for name, pairs in history.items()}


def differing_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    parts = sorted((one.keys() | other.keys()) - {*START})
    return [part for part in parts if digest(one.get(part)) != digest(other.get(part))]


def differing_counts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in COUNTED if one["progress"].get(name) != other["progress"].get(name)]


def look_at_files(project: Path) -> Files:
    """Return size, modification time and inode of each file of a project, to notice a change without reading it."""
    found = {}
    for folder, folders, names in os.walk(project):
        folders[:] = {*folders} - NOT_THE_OWNERS
        for file in (Path(folder, name) for name in names):
            with suppress(OSError):
                stat = os.lstat(file)
                found[str(file.relative_to(project))] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def changed_files(project: Path, before: Files) -> list[str]:
    now = look_at_files(project)
    return sorted(name for name, facts in before.items() if now.get(name) != facts)


def shown(happened: Sequence[Fault], output: str) -> str:
    names = ", ".join(fault.kind for fault in happened) or "nothing"
    lines = [line for line in output.splitlines() if not line.startswith(STACK)]
    return "\n".join([f"after {names}", *lines[-SHOWN:]])


def unexpected_failure(
    happened: Sequence[Fault], hit: int | None, code: int, output: str, hides: Collection[int]
) -> str:
    """Return why an end does not follow from these faults, or "". If a fault hit one rank, the output must name it."""
    exits = [FAULTS[fault.kind].exits for fault in happened]
    if not any(code in each for each in [*exits, hides]):
        return f"exit code {code}"
    causes = [each[code] for each in exits if code in each]
    if code in hides:
        causes += [cause for each in exits for cause in each.values()]
    if len(happened) == 1 and hit is not None:
        causes = [cause.replace(VICTIM, str(hit)) for cause in causes]
    if not any(re.search(cause, output, re.DOTALL) for cause in causes):
        return f"exit code {code}, and no line that has the cause,"
    hidden = code in hides and any(FAILED in each for each in exits)
    by_itself = code in BY_ITSELF and not hidden
    tracebacks = output.count(TRACEBACK) - output.count(ON_PURPOSE)
    if by_itself and tracebacks and not any(thread in output for thread in THREADS):
        return "a traceback"
    return ""
