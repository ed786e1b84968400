"""Where each rank is: a run that loses a rank can say which one, after what step, and what it was doing."""

import atexit
import ctypes
import json
import logging
import multiprocessing
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

from .exits import ExitCode, RankLost, in_one_line, print_alone

BEAT = 0.25  # seconds between two signs of life
SILENT = 3 * BEAT  # seconds without one, after which a rank counts as missing if a collective has failed
PATIENCE = 3.0  # seconds in which the same collective has failed on all ranks that came to it
# The variable by which torch's flight recorder knows where to write: the name of a file, but for the rank at its end.
RECORDS = "TORCH_FR_DUMP_TEMP_FILE"


@dataclass
class RankStatus:
    """What a rank is doing."""

    step: int = 0  # the last one that is complete
    phase: str = "starting"
    failed: str = ""  # what a collective has said, in which it waited for others
    end: str = ""  # why it has left
    beat: int = 0  # how often it has said so
    since: float = field(default=0.0, compare=False)  # time.monotonic() at which another rank saw it first

    def __str__(self) -> str:
        return f"{self.phase}, after step {self.step}"


MISMATCH = (
    "ranks must call the same collectives, on tensors of the same shapes: see compute(), and code of one rank; in an "
    "evaluation, batches have one size on all ranks if the number of samples is a multiple of that of the ranks"
)
REPORTED, HEARD = "reports of rank 0", "ranks that know of them"  # keys of the store at which the ranks met
KEPT: list[Any] = []  # what C calls, and Python would forget: the end at a mismatch; and what was called before
OWN_WAIT = SimpleNamespace(what=None)  # a function, new for each wait, that says for what this rank itself waits
STATUS = RankStatus()  # the training loop only sets it, which costs nothing; a thread tells the others


def write_record(rank: int) -> str:
    """Write the last collectives of this rank, which NCCL does by itself. Returns where they are, in words, if so."""
    if RECORDS not in os.environ:  # there is no run directory yet
        return ""
    file = Path(f"{os.environ[RECORDS]}{rank}")
    if dist.get_backend() != "nccl":
        with suppress(OSError):
            file.write_bytes(vars(_distributed_c10d)["_dump_fr_trace"]())  # which torch has no type for
    return f"; {file} has the last collectives of rank {rank}" if file.exists() else ""


def watch_this_rank(rank: int, patience: float) -> None:
    """End this process, with one line that says why, where it could not end by itself, or would say nothing."""
    threading.Thread(target=end_a_wait, args=(rank, patience), daemon=True).start()
    if dist.get_backend() == "gloo" and sys.platform == "linux":
        end_at_a_mismatch(rank)


def end_a_wait(rank: int, patience: float) -> None:
    """End this process if it waits for something by itself for longer than the patience (seconds), and say for what.

    Beats are counted, and not the time, which also passes for processes that are frozen.
    """
    last, beats = None, 0
    while not STATUS.end:
        time.sleep(BEAT)
        last, beats = OWN_WAIT.what, beats + 1 if OWN_WAIT.what is last else 0
        if last and beats * BEAT > patience:
            advice = "see what hangs there, or give --timeout more seconds; start again with --resume"
            wait = f"it has waited {patience:.0f} s for {last()}, after step {STATUS.step}: {advice}"
            end_process(rank, f"LoaderLost {wait}", ExitCode.LOST)


def end_at_a_mismatch(rank: int) -> None:
    """Say why Gloo ends this process, if it does: it throws what nothing catches if collectives do not match."""
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_current_exception_type.restype = ctypes.POINTER(ctypes.c_char_p)
    library._ZSt13set_terminatePFvvE.restype = ctypes.CFUNCTYPE(None)

    def end() -> None:
        thrown = library.__cxa_current_exception_type()  # the second word of std::type_info is its name
        if thrown and b"EnforceNotMet" in thrown[1]:
            end_process(rank, f"UserError {MISMATCH}", ExitCode.REFUSED)
        before()

    KEPT[:] = [ctypes.CFUNCTYPE(None)(end)]
    before = library._ZSt13set_terminatePFvvE(KEPT[0])
    KEPT.append(partial(library._ZSt13set_terminatePFvvE, before))


def report_is_known(rank: int, world_size: int) -> bool:
    """Tell the ranks that rank 0 has reported the error that all of them have; they need its store until then.

    Rank 0 calls it after its report, others before they say nothing. Returns whether all know it, within seconds.
    """
    known = threading.Event()

    def ask() -> None:
        store = dist.distributed_c10d._get_default_store()
        own, other, number = (REPORTED, HEARD, world_size - 1) if rank == 0 else (HEARD, REPORTED, 1)
        try:
            store.add(own, rank == 0)
            for _ in range(int(PATIENCE / 0.05)):
                if store.add(other, 0) >= number:
                    store.add(own, rank != 0)
                    return known.set()
                time.sleep(0.05)
        except RuntimeError:  # rank 0 has left, and the store with it
            known.set()

    if world_size > 1:
        thread = threading.Thread(target=ask, name=__name__, daemon=True)  # hangs if the store is frozen
        thread.start()
        thread.join(timeout=PATIENCE + 1)
    return known.is_set()


def end_process(rank: int, end: str, code: ExitCode) -> None:
    """End this process, of which no thread may be able to, once the others have heard why."""
    STATUS.end = end
    print_alone(f"error: rank {rank}: {end.partition(' ')[2]}")
    time.sleep(SILENT)
    exit_now(code)


def exit_now(code: int) -> None:
    """Exit without Python's clean-up, and end the processes that load data: one that hangs as it starts would stay."""
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(code)


def leave_before_python_ends(code: int) -> None:
    """If a thread still waits for the store, end this process as Python begins to: an answer would abort it then."""
    if any(thread.name == __name__ for thread in threading.enumerate()):  # which Python 3.14 would let hang
        print(end="", flush=True)
        atexit.register(exit_now, code)


class Watchdog:
    """Tells the others where this rank is and hears where they are, through the store at which the group has met."""

    def __init__(self, rank: int, world_size: int, patience: float) -> None:
        """Begin. If the next rank is silent for longer than the patience (seconds), the log says so."""
        self.rank = rank
        self.patience = patience
        self.others = [other for other in range(world_size) if other != rank]
        # Each rank listens to the next one: so all are watched, and none has much to read.
        self.heeded = [(rank + 1) % world_size]
        self.seen: dict[int, RankStatus] = {}
        store = dist.distributed_c10d._get_default_store()
        if hasattr(store, "clone"):  # a client of its own, whose timeout is another; old versions of torch have none
            store = store.clone()
            store.set_timeout(timedelta(seconds=5))
        self.store = dist.PrefixStore("whereabouts", store)
        self.answered = time.monotonic()  # the store, last
        self.record = ""  # where the last collectives of this rank are, in words
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._live, name=__name__, daemon=True)  # hangs if the store is frozen
        self._tell()
        self.thread.start()

    def leave(self, end: str) -> None:
        """Tell the others that this rank ends, and why, if the store still answers."""
        STATUS.end = end
        self.over.set()
        self.thread.join(timeout=SILENT)
        if KEPT:
            KEPT[1]()  # Python is taken down next, and could run no more

    def report(self, end: str) -> None:
        """Say in one line where this rank was when its program failed, and why: the traceback comes later."""
        logging.error("it fails, %s: %s", STATUS, end)

    def blame(self, error: RuntimeError) -> None:
        """After a collective has failed: raise RankLost if another rank has ended, is silent or does not come."""
        if not self.others:
            return
        STATUS.failed, self.heeded = in_one_line(error), self.others
        self.record = write_record(self.rank)
        missing = self._missing(SILENT + 2 * BEAT)
        # A rank that times out closes its connections; other ranks then fail with other messages.
        if not missing and any(
            "imed out" in said for said in (STATUS.failed, *(it.failed for it in self.seen.values()))
        ):
            # Every rank that entered the collective fails within seconds.
            self._missing(PATIENCE)
            places = self.seen.items()
            missing = {rank: f"does not come: it is {place}" for rank, place in places if not place.failed}
            if not missing:
                logging.warning("a collective has failed", exc_info=error)
                raise RankLost(f"all ranks wait for each other: {MISMATCH}", should_report=self.rank == 0) from error
        if missing:
            found = "; ".join(f"rank {rank} {what}" for rank, what in missing.items())
            if "does not come" in found or "ended: it is done" in found:  # the program may be at fault, here or there
                logging.warning("a collective has failed", exc_info=error)
            left = [rank for rank in (self.rank, *self.others) if rank not in missing]
            advice = "start again with --resume" if STATUS.step else "launch.sh --doctor examines the nodes"
            if MISMATCH in found or "load_data()" in found:
                advice = "no --resume helps" if MISMATCH in found else "if it needs longer, give --timeout more seconds"
            more = "" if "has ended: UserError" in found else f"; {advice}{self.record}"  # it says what to do itself
            raise RankLost(f"{found}{more}", should_report=self.rank == min(left)) from error

    def _missing(self, seconds: float) -> dict[int, str]:
        """Listen to the others for some seconds, and say which have ended or are silent."""
        time.sleep(seconds)
        now, seen = time.monotonic(), dict(self.seen)
        if ended := {rank: f"has ended: {place.end}" for rank, place in seen.items() if place.end}:
            return ended
        if now > self.answered + SILENT:
            # Rank 0 or its launcher keeps the store, and the last rank listens to rank 0.
            should_report = self.rank > max(seen, default=-1)
            last = "".join(f"; rank {rank} was {place}" for rank, place in seen.items())
            raise RankLost(
                f"the store at which the ranks met is silent{last}{self.record}", should_report=should_report
            )
        return {rank: f"is silent: it was {place}" for rank, place in seen.items() if now > place.since + SILENT}

    def _live(self) -> None:
        warned = False
        while not self.over.wait(BEAT):
            try:
                self._tell()
                self._hear()
                self.answered = time.monotonic()
            except dist.DistNetworkError:  # what keeps the store is gone; each further attempt would print a page
                return
            except RuntimeError:  # it is busy
                continue
            silent = [rank for rank, place in self.seen.items() if time.monotonic() > place.since + self.patience]
            if silent and not warned:
                place = self.seen[silent[0]]
                record = f"; if it stays so, others write {os.environ[RECORDS]}*" if RECORDS in os.environ else ""
                logging.warning("rank %d is silent for %.0f s: it was %s%s", silent[0], self.patience, place, record)
            warned = bool(silent)
        with suppress(RuntimeError):  # rank 0 may have ended, and the store with it
            self._tell()

    def _tell(self) -> None:
        STATUS.beat += 1
        self.store.set(str(self.rank), json.dumps(asdict(STATUS)))

    def _hear(self) -> None:
        ranks = self.heeded
        for rank, text in zip(ranks, self.store.multi_get([str(rank) for rank in ranks]), strict=True):
            place = RankStatus(**json.loads(text))
            if place != self.seen.get(rank):
                place.since = time.monotonic()
                self.seen[rank] = place
