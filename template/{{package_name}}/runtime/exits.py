"""How a run ends: its exit codes, the errors that the user can fix, and the signals that ask it to stop."""

import ctypes
import logging
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from multiprocessing import get_start_method
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SMALLER_BATCHES = "raise --accum-steps, for smaller micro-batches and the same result, or lower --global-batch-size"

# What errors of torch mean for the owner, by their words.
MISTAKES = {
    "uninitialized parameter|meta tensor": "model.py: build_model() must give parameters values, lazy ones by a batch",
    "expects same model|appears not to match": "model.py: build_model() must return the same model on every rank",
    "empty parameter list": "task.py: build_optimizer() finds no parameters",
    "no attribute 'param_groups'": "task.py: build_optimizer() must return an optimizer, several of them as Optimizers",
    "requires? (a )?closure": "task.py: the optimizer needs a closure: choose one that does without",
    r"task' has no attribute": "task.py: a name is missing that the program uses: add it, or leave out its use",
    "SparseTensorImpl": "sparse gradients are not averaged: leave out sparse=True",
}


class ExitCode(IntEnum):
    """What the program tells the shell, the launcher or the scheduler."""

    DONE = 0  # the training is done
    FAILED = 1  # a programming error; its traceback names the rank
    REFUSED = 2  # an option, a file or the machine is wrong; one line says what to do
    DIVERGED = 65  # the numbers are not finite any more; one line names the last good checkpoint
    LOST = 69  # a rank is gone or silent; one line says which: start again with --resume
    STOPPED = 75  # a signal asked it to stop and a checkpoint is written: start again with --resume


class UserError(Exception):
    """Something the user can fix. The message is one line: what is wrong, and what would work."""

    code = ExitCode.REFUSED
    should_report: bool | None = None  # whether this rank reports it; None: all ranks have it, and the first one does

    def __reduce__(self) -> Any:
        """Come from another process as what the user should see: a class of the owner's may take other arguments."""
        return UserError, (str(self),), {"code": self.code, "should_report": self.should_report}


class Diverged(UserError):
    """Gradients or weights are inf or NaN, on all ranks: training further would be a waste."""

    code = ExitCode.DIVERGED


class OutOfMemory(UserError):
    """The GPU of this rank, or its node, has no memory left; the others may wait for it."""

    should_report = True


class LoaderLost(UserError):
    """A process that loads data for this rank is gone; the other ranks may wait for it."""

    code = ExitCode.LOST
    should_report = True


class RankLost(UserError):
    """Another rank is gone, or does not do its part; one of those that are left speaks for all."""

    code = ExitCode.LOST

    def __init__(self, message: str, *, should_report: bool) -> None:
        super().__init__(message)
        self.should_report = should_report


def finish(work: Callable[[], Any]) -> int:
    """Do the work of a program that is one process, tell an error of the user in one line, and return the exit code."""
    try:
        work()
    except (UserError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return ExitCode.REFUSED
    return ExitCode.DONE


def start_of_line() -> str:
    """Return what a message begins with that is not rank 0's own: in a terminal, it replaces the bar of rank 0."""
    return "\r\x1b[K" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else ""


def print_alone(message: str) -> None:
    """Print a line to stderr, in place of the bar and in one piece, also where Python does not buffer."""
    file = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # the bar would come back after the message
    print(f"{start_of_line()}{message}\n", end="", file=file, flush=True)


def raise_if_out_of_memory(error: Exception, rank: int, lower: str = SMALLER_BATCHES) -> None:
    """Raise OutOfMemory if the error says so: torch has a type for it, but CUDA, cuBLAS, cuDNN and NCCL have words."""
    if found := re.search(r".*(out of memory|_ALLOC(ATION)?_FAILED).*", str(error)):
        reason = ". ".join(found[0].split(". ")[:3])
        raise OutOfMemory(f"rank {rank} is out of memory: {lower}, or end what else uses its GPU ({reason})") from error
    if is_out_of_memory(error):
        lower = f"lower --workers, raise --accum-steps, or end what else its node does ({in_one_line(error):.200})"
        raise OutOfMemory(f"rank {rank} is out of memory, that of its node: {lower}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error says that the node has no memory left."""
    words = r"can't start new thread|[Cc]an(no|')t allocate memory"
    return isinstance(error, MemoryError) or re.search(words, str(error)) is not None


def raise_for_user(error: Exception, rank: int) -> None:
    """Raise the UserError that an error of a library means, if it means one."""
    raise_if_out_of_memory(error, rank)
    if found := re.search(r"DataLoader worker .*?(killed by signal: \w+|exited unexpectedly)", str(error)):
        advice = "if it was for want of memory, lower --workers; start again with --resume"
        if "SIGBUS" in found[1]:
            advice = "/dev/shm is full: give it more, as docker run --shm-size=8g does, or give --workers 0"
        raise LoaderLost(f"rank {rank}: a process that loads its data has gone ({found[1]}); {advice}") from error
    for words, meaning in MISTAKES.items():
        if re.search(words, str(error)):
            raise UserError(f"{meaning} ({in_one_line(error):.200})") from error


def reported_by_first(error: UserError, *, first: bool) -> UserError:
    """Return an error that the first rank of a node reports; if it is stuck, and has not left, this one does."""
    if not first:
        time.sleep(3)
        error.should_report = True
    return error


def in_one_line(error: BaseException) -> str:
    """Return type and message of an error; the last line if it is a traceback of a worker of the loader."""
    lines = f"{type(error).__name__} {error}".strip().splitlines()
    text = lines[-1] if any(line.startswith("Original Traceback") for line in lines) else " ".join(lines)
    return " ".join(text.split())[:300]


def ignore_stop_signals() -> None:
    """Ignore stop signals from here on: the exit code is decided."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """Remembers that TERM, INT or USR1 reached this rank, or that its time is over.

    A handler may run in the middle of anything, so it only sets a flag. The ranks agree on it when they reduce their
    metrics, and leave together after the same step.
    """

    def __init__(self, max_hours: float = 0.0) -> None:
        """Listen from here on, and begin to count the hours; 0: no limit."""
        self.signalled = False  # this rank
        self.ends = time.monotonic() + (max_hours or math.inf) * 3600
        self.agreed = False  # by all ranks: one of them is to stop
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)

    @property
    def received(self) -> bool:
        """Return whether this rank is to stop."""
        return self.signalled or time.monotonic() >= self.ends

    def leave(self, step: int) -> ExitCode:
        """Log after which step the run stops, and return the exit code."""
        logging.info("stopped after step %d; --resume goes on from here", step)
        return ExitCode.STOPPED

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True


def end_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; exit now if the parent, with this ID, is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of <sys/prctl.h>
    # The parent of all processes of a fork server is that server, which ends with what has started it.
    if parent not in (None, os.getppid()) and get_start_method(allow_none=True) != "forkserver":
        os.kill(os.getpid(), signal.SIGKILL)
