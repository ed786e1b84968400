"""Where each rank is: a run that loses a rank can say which one, after what step, and what it was doing."""

import atexit
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d

from .exits import ExitCode, RankLost

BEAT = 0.25  # seconds between two signs of life
SILENT = 3 * BEAT  # seconds without one, after which a rank counts as missing if a collective has failed
PATIENCE = 3.0  # seconds in which the same collective has failed on all ranks that came to it
# The variable by which torch's flight recorder knows where to write: the name of a file, but for the rank at its end.
RECORDS = "TORCH_FR_DUMP_TEMP_FILE"


@dataclass
class Whereabouts:
    """What a rank is doing."""

    step: int = 0  # the last one that is complete
    phase: str = "starting"
    failed: bool = False  # a collective, in which it waited for others
    end: str = ""  # why it has left
    beat: int = 0  # how often it has said so
    since: float = field(default=0.0, compare=False)  # time.monotonic() at which another rank saw it first

    def __str__(self) -> str:
        return f"{self.phase}, after step {self.step}"


@dataclass
class OwnWait:
    """What this rank waits for by itself, if it does: others need not wait for it in a collective, which would end."""

    what: Callable[[], str] | None = None  # another object for each wait


OWN_WAIT = OwnWait()
HERE = Whereabouts()  # the training loop only sets it, which costs nothing; a thread tells the others


def write_record(rank: int) -> str:
    """Write the last collectives of this rank, which NCCL does by itself. Returns where they are, in words, if so."""
    if RECORDS not in os.environ:  # there is no run directory yet
        return ""
    file = Path(f"{os.environ[RECORDS]}{rank}")
    if dist.get_backend() != "nccl":
        with suppress(OSError):
            file.write_bytes(vars(_distributed_c10d)["_dump_fr_trace"]())  # which torch has no type for
    return f"; {file} has the last collectives of rank {rank}" if file.exists() else ""


def watch_own_wait(rank: int, patience: float) -> None:
    """End this process if it waits for something by itself for longer than the patience (seconds), and say for what.

    Beats are counted, and not the time, which also passes for processes that are frozen.
    """
    last, beats = None, 0
    while not HERE.end:
        time.sleep(BEAT)
        last, beats = OWN_WAIT.what, beats + 1 if OWN_WAIT.what is last else 0
        if last and beats * BEAT > patience:
            advice = "see what hangs there, or give --timeout more seconds; start again with --resume"
            wait = f"rank {rank} has waited {patience:.0f} s for {last()}, after step {HERE.step}: {advice}"
            HERE.end = f"LoaderLost {wait}"
            print("error:", wait, file=sys.stderr, flush=True)
            time.sleep(SILENT)  # until the others have heard it
            os._exit(ExitCode.LOST)  # nothing else ends a thread that hangs


def leave_before_python_ends(code: int) -> None:
    """If a thread still waits for the store, end this process as Python begins to: an answer would abort it then."""
    if any(thread.name == __name__ for thread in threading.enumerate()):  # which Python 3.14 would let hang
        print(end="", flush=True)
        atexit.register(os._exit, code)


class SignsOfLife:
    """Tells the others where this rank is and hears where they are, through the store at which the group has met."""

    def __init__(self, rank: int, world_size: int, patience: float) -> None:
        """Begin. If the next rank is silent for longer than the patience (seconds), the log says so."""
        self.rank = rank
        self.patience = patience
        self.others = [other for other in range(world_size) if other != rank]
        # Each rank listens to the next one: so all are watched, and none has much to read.
        self.heeded = [(rank + 1) % world_size]
        self.seen: dict[int, Whereabouts] = {}
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
        HERE.end = end
        self.over.set()
        self.thread.join(timeout=SILENT)

    def report(self, end: str) -> None:
        """Say in one line where this rank was when its program failed, and why: the traceback comes later."""
        logging.error("it fails, %s: %s", HERE, end)

    def blame(self, error: RuntimeError) -> None:
        """After a collective has failed: raise RankLost if another rank has ended, is silent or does not come."""
        if not self.others:
            return
        HERE.failed, self.heeded = True, self.others
        self.record = write_record(self.rank)
        missing = self._missing(SILENT + 2 * BEAT)
        if not missing and "imed out" in str(error):
            # Whoever came to the collective fails in it, too, a little sooner or later.
            self._missing(PATIENCE)
            places = self.seen.items()
            missing = {rank: f"does not come: it is {place}" for rank, place in places if not place.failed}
        if missing:
            found = "; ".join(f"rank {rank} {what}" for rank, what in missing.items())
            if "does not come" in found or "ended: it is done" in found:  # the program may be at fault, here or there
                logging.warning("a collective has failed", exc_info=error)
            left = [rank for rank in (self.rank, *self.others) if rank not in missing]
            advice = "start again with --resume" if HERE.step else "launch.sh --doctor examines the machines"
            raise RankLost(f"{found}; {advice}{self.record}", speaks=self.rank == min(left)) from error

    def _missing(self, seconds: float) -> dict[int, str]:
        """Listen to the others for some seconds, and say which have ended or are silent."""
        time.sleep(seconds)
        now, seen = time.monotonic(), dict(self.seen)
        if now > self.answered + SILENT:
            # Rank 0 or its launcher keeps the store, and the last rank listens to rank 0.
            speaks = self.rank > max(seen, default=-1)
            last = "".join(f"; rank {rank} was {place}" for rank, place in seen.items())
            raise RankLost(f"the store at which the ranks met is silent{last}{self.record}", speaks=speaks)
        ended = {rank: f"has ended: {place.end}" for rank, place in seen.items() if place.end}
        return ended or {
            rank: f"is silent: it was {place}" for rank, place in seen.items() if now > place.since + SILENT
        }

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
        HERE.beat += 1
        self.store.set(str(self.rank), json.dumps(asdict(HERE)))

    def _hear(self) -> None:
        ranks = self.heeded
        for rank, text in zip(ranks, self.store.multi_get([str(rank) for rank in ranks]), strict=True):
            place = Whereabouts(**json.loads(text))
            if place != self.seen.get(rank):
                place.since = time.monotonic()
                self.seen[rank] = place
