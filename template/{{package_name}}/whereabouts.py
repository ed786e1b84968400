"""Where each rank is: a run that waits for a rank in vain can say for which one, after what step, and doing what."""

import json
import logging
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import torch.distributed as dist

from .exits import RankLost

BEAT = 0.25  # seconds between two signs of life
SILENT = 3 * BEAT  # seconds without one, after which a rank counts as missing where a collective has failed


@dataclass
class Whereabouts:
    """What a rank is doing."""

    step: int = 0  # the last one that is complete
    phase: str = "starting"
    end: str = ""  # why it has left
    beat: int = 0  # how often it has told
    since: float = field(default=0.0, compare=False)  # time.monotonic() at which another rank saw it first

    def __str__(self) -> str:
        return f"{self.phase}, after step {self.step}"


HERE = Whereabouts()  # the training loop only sets it, which costs nothing; a thread tells the others


class SignsOfLife:
    """Tells the others where this rank is and hears where they are, through the store at which the group has met."""

    def __init__(self, rank: int, world_size: int, patience: float) -> None:
        """Begin. Where the next rank is silent for longer than the patience (seconds), the log says so."""
        self.rank = rank
        self.patience = patience
        self.others = [other for other in range(world_size) if other != rank]
        # Each rank listens to the next one: so all are watched, and none has much to read.
        self.heeded = [(rank + 1) % world_size]
        self.seen: dict[int, Whereabouts] = {}
        store = dist.distributed_c10d._get_default_store()
        # Not the group's own client, whose timeout is another; old versions of torch have no other.
        self.store = dist.PrefixStore("whereabouts", store.clone() if hasattr(store, "clone") else store)
        self.store.set_timeout(timedelta(seconds=5))
        self.answered = time.monotonic()  # the store, last
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True)  # it hangs for ever where the store is frozen
        self._tell()
        self.thread.start()

    def leave(self, end: str) -> None:
        """Tell the others that this rank ends, and why, where the store still answers."""
        HERE.end = end
        self.over.set()
        self.thread.join(timeout=SILENT)

    def blame(self, error: RuntimeError) -> None:
        """After a collective has failed: raise RankLost where another rank has ended, is silent or does not come."""
        self.heeded = self.others
        time.sleep(SILENT + 2 * BEAT if self.others else 0)
        now, seen = time.monotonic(), {rank: self.seen[rank] for rank in self.others if rank in self.seen}
        if seen and now > self.answered + SILENT:
            last = "; ".join(f"rank {rank} was {place}" for rank, place in seen.items())
            raise RankLost(f"the store at which the ranks met is silent; before, {last}", speaks=True) from error
        ended = {rank: f"has ended: {place.end}" for rank, place in seen.items() if place.end}
        silent = {rank: f"is silent: it was {place}" for rank, place in seen.items() if now > place.since + SILENT}
        late = {rank: f"does not come: it is {place}" for rank, place in seen.items() if place.phase != HERE.phase}
        missing = ended or silent or (late if "imed out" in str(error) else {})
        if missing:
            if missing is not silent:  # then this place in the program may be at fault
                logging.warning("a collective has failed", exc_info=error)
            left = [rank for rank in (self.rank, *self.others) if rank not in missing]
            found = "; ".join(f"rank {rank} {what}" for rank, what in missing.items())
            raise RankLost(f"{found}; start again with --resume", speaks=self.rank == min(left)) from error

    def _live(self) -> None:
        warned = False
        while not self.over.wait(BEAT):
            try:
                self._tell()
                for rank in self.heeded:
                    self._hear(rank)
                self.answered = time.monotonic()
            except RuntimeError:  # what keeps the store is busy, or gone
                continue
            silent = [rank for rank, place in self.seen.items() if time.monotonic() > place.since + self.patience]
            if silent and not warned:
                place = self.seen[silent[0]]
                logging.warning("rank %d is silent for %.0f s: it was %s", silent[0], self.patience, place)
            warned = bool(silent)
        self._tell()

    def _tell(self) -> None:
        HERE.beat += 1
        self.store.set(str(self.rank), json.dumps(asdict(HERE)))

    def _hear(self, rank: int) -> None:
        place = Whereabouts(**json.loads(self.store.get(str(rank))))
        if place != self.seen.get(rank):
            place.since = time.monotonic()
            self.seen[rank] = place
