"""Streams: shards that are read one after the other, dealt out to ranks and workers, none of which knows the end."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from itertools import chain, count, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler
from torch.utils.data._utils import worker as of_worker

from ..config import Config
from .collation import BatchDataset, loaded, same_generators_after, seed_batch
from .collectives import BATCH, gather_objects
from .data_loading import Collate, EvaluationLoader, MicroBatches, PrefetchLoader, TrainingLoader, workers_for
from .distributed import seconds_to_wait
from .exits import UserError, in_one_line
from .launcher import DistEnv
from .permutation import Permutation
from .sampling import Stream
from .watchdog import OWN_WAIT

FIRST_SLOTS, MOST_SLOTS, TURNS = 8, 64, (1, 2, 4, 8)
UNEVEN = 1.34  # times the mean number of shards is the most that a lane may have
Place = list[Any]  # of a lane: four numbers, or the state of an iterable
Places = dict[int, Place]


class Stateful(Stream):
    """A stream of one shard: an iterable with state_dict() and load_state_dict(), which every rank and worker reads."""

    def __init__(self, iterable: Any) -> None:
        super().__init__([iterable], iter)
        self.begin = self.state = deepcopy(iterable.state_dict())
        if hasattr(iterable, "set_epoch"):
            self.set_epoch = self._set_epoch

    def _set_epoch(self, epoch: int) -> None:
        """Tell the iterable which epoch it begins. Its state may hold the epoch, so lanes get the state after that."""
        [iterable] = self.shards
        iterable.load_state_dict(deepcopy(self.begin))
        iterable.set_epoch(epoch)
        self.state = deepcopy(iterable.state_dict())


def as_stream(name: str, dataset: Any, shared: str | None = None) -> Stream:
    """Return a dataset without __getitem__ as a stream. Raises UserError if it cannot be read by many ranks.

    An iterable with a state has one place: if another set is the same one, whose name is shared, this is a copy.
    """
    if not isinstance(dataset, Stream):
        kind = f"data.py: the {name} set is a stream ({type(dataset).__name__})"
        if not all(hasattr(dataset, each) for each in ("__iter__", "state_dict", "load_state_dict")):
            raise UserError(f"{kind} that cannot be dealt out: return Stream(shards, read) of runtime/ instead")
        try:
            dataset = deepcopy(dataset) if shared else dataset
        except Exception as error:
            wrong = f"which is the {shared} set, too, and cannot be copied: {in_one_line(error)}"
            raise UserError(f"{kind}, {wrong}: return an object of its own") from error
        try:
            dataset = Stateful(dataset)
        except Exception as error:
            raise UserError(f"{kind}, whose state_dict() fails: {in_one_line(error)}") from error
    shards = dataset.shards
    if isinstance(shards, Mapping) or not (hasattr(shards, "__len__") and hasattr(shards, "__getitem__")):
        found = type(shards).__name__
        raise UserError(f"data.py: the shards of the {name} set must be a list, the same on all ranks, not {found}")
    if isinstance(dataset.shuffle, bool) or not isinstance(dataset.shuffle, int) or dataset.shuffle < 0:
        raise UserError(f"data.py: shuffle of the {name} set must be a number of samples, not {dataset.shuffle!r:.40}")
    whole: Stream = dataset
    return whole


class Layout(NamedTuple):
    """How shards become global batches, the same ones for any number of ranks and workers.

    Shard i of an epoch belongs to lane i % (slots * turns). Let f be slots * (s % turns). Global batch s has
    batch / slots samples of each of the lanes f, f + 1, ..., f + slots - 1, in this order. A rank reads the lanes that
    its part of the batch comes from, and a worker the lanes whose turn it is when its batches are due.
    """

    batch: int  # samples, over all ranks
    slots: int  # lanes in a batch
    turns: int  # batches after which the same lanes come again

    def lanes(self, number: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the lanes of some places of a batch, and which of the lane's samples in the batch they are."""
        each = self.batch // self.slots
        for slot in range(first // each, -(-end // each)):
            lane = number % self.turns * self.slots + slot
            yield lane, max(first - slot * each, 0), min(end - slot * each, each)


def layout_of(stream: Stream, batch: int) -> Layout:
    """Return a layout of lanes with about equally many shards: slots for ranks first, then turns for workers."""
    shards = max(1, len(stream.shards))

    def fits(lanes: int) -> bool:
        return lanes == 1 or lanes <= shards >= -(-shards // lanes) * lanes / UNEVEN

    def most(numbers: Iterable[int], others: int) -> int:
        return max((number for number in numbers if fits(number * others)), default=1)

    slots = [number for number in range(1, min(batch, MOST_SLOTS) + 1) if batch % number == 0]
    turns = most(TURNS, most([number for number in slots if number <= FIRST_SLOTS], 1))
    return Layout(batch, most(slots, turns), turns)


class StreamBatch(NamedTuple):
    """What a sampler of a stream yields: which part of which global batch to load."""

    indices: list[int]  # numbers of the samples in the epoch, if no shard has ended
    rng_key: tuple[int, ...]
    epoch: int  # 0 in an evaluation
    start: tuple[int, ...]  # another one each time that lanes are opened again
    number: int  # of the global batch in the epoch
    layout: Layout
    lanes: list[tuple[int, int, int]]  # and which of their samples
    places: Places  # of these lanes at the start, but for those that nobody has read


class About:
    """What is known of a loaded part of a batch. It is opaque, so that nothing in it is moved to the device."""

    def __init__(self, number: int, samples: int, lanes: "dict[int, Lane]") -> None:
        self.number = number  # of the global batch in the epoch
        self.samples = samples  # of this rank: without any, the batch only takes part in collectives
        self.places = {number: each.place for number, each in lanes.items()}  # after the batch
        self.over = {number: each.over for number, each in lanes.items()}  # whether they are at their end
        self.step = (0, 0)  # if it begins a step: micro-batches, and samples over all ranks
        self.is_last = False  # whether that step ends the epoch


class Part(NamedTuple):
    """A loaded part of a global batch."""

    batch: Any
    about: About


class Lane:
    """Reads some shards of a stream from a place on.

    To shuffle, it permutes one block of samples after the other, and reads the next block while it returns the samples
    of this one. So its place is four numbers: of the block, of its first shard and sample, and how many were returned.
    """

    visited = -1  # the last global batch for which it was read
    taken: list[Any]  # its samples in that batch
    over = False

    def __init__(self, stream: Stream, shards: list[int], block: int, key: tuple[int, ...], place: Place) -> None:
        self.stream, self.shards, self.block, self.key, self.place = stream, shards, block, key, place
        self.samples = self._shuffled() if block else self._in_order()

    def read(self, batch: "StreamBatch") -> list[Any]:
        """Return its samples in a global batch. Other workers may have loaded the batches before it."""
        each = batch.layout.batch // batch.layout.slots
        while self.visited < batch.number:
            self.visited += batch.layout.turns
            self.taken = [] if self.over else self.take(each)
            self.over = len(self.taken) < each
        return self.taken

    def take(self, most: int) -> list[Any]:
        """Return the next samples: fewer at the end."""
        taken = []
        for sample, place in islice(self.samples, most):
            taken.append(sample)
            self.place = place
        return taken

    def _read(self, shard: int, sample: int) -> Iterator[tuple[Any, int, int]]:
        """Yield the samples from a place on, and the place after each."""
        for place in range(shard, len(self.shards)):
            name = self.stream.shards[self.shards[place]]
            for number, found in enumerate(self._samples_of(name)):
                if number >= sample:
                    yield found, place, number + 1
            sample = 0

    def _samples_of(self, shard: Any) -> Iterator[Any]:
        what = f"of shard {shard!r:.200}"
        reading = loaded(lambda _: iter(self.stream.read(shard)), what)
        while (found := loaded(lambda _: next(reading, reading), what)) is not reading:
            yield found

    def _in_order(self) -> Iterator[tuple[Any, Place]]:
        _, shard, sample, _ = self.place
        return ((found, [0, shard, sample, 0]) for found, shard, sample in self._read(shard, sample))

    def _shuffled(self) -> Iterator[tuple[Any, Place]]:
        number, shard, sample, given = self.place
        source = self._read(shard, sample)
        block = [*islice(source, self.block)]
        while block:
            following: list[tuple[Any, int, int]] = []
            order = Permutation(len(block), *self.key, number)[np.arange(len(block))]
            for i, chosen in enumerate(order.tolist(), start=1):
                following += islice(source, 1)
                if i > given:
                    yield block[chosen][0], [number, shard, sample, i]
            following += islice(source, self.block - len(following))
            _, shard, sample = block[-1]
            number, given, block = number + 1, 0, following


class StatefulLane(Lane):
    """Reads an iterable, whose state is the place. In each process, and after a resume, it draws the same numbers."""

    def __init__(self, iterable: Any, key: tuple[int, ...], place: Place) -> None:
        self.iterable, self.key, self.place = iterable, key, place
        seed_batch(*key)
        iterable.load_state_dict(deepcopy(place[0]))
        self.samples = map(lambda sample: sample, iterable)  # islice() would call its __iter__() for each batch

    def take(self, most: int) -> list[Any]:
        """Return the next samples: fewer at the end."""
        seed_batch(*self.key, self.visited)
        taken: list[Any] = loaded(lambda _: [*islice(self.samples, most)], "of the stream")
        self.place = [deepcopy(self.iterable.state_dict())]
        return taken


def lane_of(stream: Stream, shards: list[int], block: int, key: tuple[int, ...], place: Place | None) -> Lane:
    """Return a lane of some shards at a place; None is the beginning."""
    if isinstance(stream, Stateful):
        return StatefulLane(stream.shards[0], key, place or [stream.state])
    return Lane(stream, shards, block, key, place or [0, 0, 0, 0])


class StreamBatches(BatchDataset):
    """Loads parts of global batches. In each process, a lane stays open from one batch to the next."""

    def __init__(self, stream: Stream, collate: Collate, seed: int) -> None:
        super().__init__(stream, collate, seed=seed)
        self.stream = stream
        self.start: tuple[int, ...] = ()
        self.lanes: dict[int, Lane] = {}
        self.stand_in: list[Any] = []  # samples for batches that have none

    def __getitem__(self, batch: Any) -> Any:
        """Return a part. It is read ahead, so the generators of the rank stay as they are, also without workers."""
        with same_generators_after():
            return super().__getitem__(batch)

    def _load(self, batch: Any) -> Part:
        if batch.start != self.start:
            self.lanes, self.start = {}, batch.start
        samples, decode = [], self.stream.decode or (lambda sample: sample)
        with hidden_worker():
            for number, first, end in batch.lanes:
                if number not in self.lanes:
                    self.lanes[number] = self._open(number, batch)
                samples += self.lanes[number].read(batch)[first:end]
            seed_batch(*batch.rng_key)
            decoded = loaded(lambda _: [*map(decode, samples or self._stand_in())], batch.indices)
        opened = {number: self.lanes[number] for number, _, _ in batch.lanes}
        return Part(self._collated(decoded, batch.indices), About(batch.number, len(samples), opened))

    def _open(self, number: int, batch: StreamBatch) -> Lane:
        """Open a lane where it was at the start."""
        (_, slots, turns), first, key = batch.layout, batch.start[1], (self.seed, batch.epoch)
        order = np.arange(len(self.stream.shards))
        if self.stream.shuffle:
            order = Permutation(len(order), *key)[order]
        shards, block = order[number :: slots * turns].tolist(), -(-self.stream.shuffle // (slots * turns))
        lane = lane_of(self.stream, shards, block, (*key, number), batch.places.get(number))
        lane.visited = first + (number // slots - first) % turns - turns
        return lane

    def _stand_in(self) -> list[Any]:
        """Return the first samples of the stream: two, which have a variance. Raises UserError if there is none."""
        if not self.stand_in:
            every = [*range(len(self.stream.shards))]
            self.stand_in = lane_of(self.stream, every, 0, (), None).take(2)
        if not self.stand_in:
            raise UserError("data.py: a stream has no samples: load_data() must return some to train and evaluate on")
        return self.stand_in


@contextmanager
def hidden_worker() -> Iterator[None]:
    """Inside, get_worker_info() returns None: iterables would deal themselves out to workers once more."""
    info, of_worker._worker_info = of_worker._worker_info, None
    try:
        yield
    finally:
        of_worker._worker_info = info


class StreamSampler(Sampler[StreamBatch]):
    """Says which lanes this rank's parts of global batches come from, from any place in an epoch on, without end.

    If a lane is at its end, the others continue: the last batches of an epoch are smaller, and each sample comes once.
    """

    samples = math.inf  # of an epoch, as far as anyone knows

    def __init__(self, stream: Stream, batch: int, env: DistEnv, seed: int, accum_steps: int = 1) -> None:
        """Begin with epoch 0. Global batches have this many samples, if no lane is at its end."""
        self.stream, self.batch, self.env, self.seed, self.accum_steps = stream, batch, env, seed, accum_steps
        self.layout = layout_of(stream, batch)
        self.starts = 0
        self.shards = len(stream.shards)  # when the epoch began
        self.resumed: Places = {}  # of all lanes, as the checkpoint has them
        self.places: Places = {}  # of this rank's lanes, after what was trained since
        self.set_epoch(0)

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Choose the epoch: from its beginning or, after some samples, from the places of the checkpoint.

        Raises UserError if it has no places or those of another number of shards. Raises UserError also if the global
        batch cannot be made of as many lanes.
        """
        shards = len(self.stream.shards)
        if skip and not (self.resumed and self.shards == shards):
            had = self.shards if self.resumed else "a length"
            remedy = "resume with as many, or from a checkpoint at the end of an epoch, or begin anew with --init-from"
            raise UserError(f"data.py: the stream has {shards} shards and had {had} when the epoch began: {remedy}")
        if skip and self.batch % self.layout.slots:
            wrong = f"--global-batch-size {self.batch} is no multiple of {self.layout.slots}"
            raise UserError(f"{wrong}, which the checkpoint needs within an epoch of a stream")
        if not skip:
            self.layout, self.number, self.end = layout_of(self.stream, self.batch), 0, math.inf
            self.resumed, self.places, self.shards = {}, {}, shards
        self.epoch, self.trained = epoch, skip

    def __iter__(self) -> Iterator[StreamBatch]:
        self.starts += 1
        start = self.epoch, self.number, self.starts
        low, high = (self.batch * (self.env.rank + i) // self.env.world_size for i in (0, 1))
        cuts = [low + (high - low) * i // self.accum_steps for i in range(self.accum_steps + 1)]
        for number in count(self.number):
            before = number * self.batch
            for first, end in pairwise(cuts):
                lanes = [*self.layout.lanes(number, first, end)]
                places = {lane: self.resumed[lane] for lane, _, _ in lanes if lane in self.resumed}
                indices, key = [*range(before + first, before + end)], (self.seed, self.epoch, before + first)
                yield StreamBatch(indices, key, self.epoch, start, number, self.layout, lanes, places)

    def advance(self, samples: int, *, is_last: bool) -> None:
        """Begin a step of some samples, over all ranks, which may end the epoch."""
        self.trained += samples
        self.end = self.trained if is_last else math.inf

    def keep(self, about: About) -> None:
        """Note where lanes are, now that a part is trained."""
        self.number = about.number + 1
        self.places |= about.places

    def is_over(self, samples: int) -> bool:
        """Return whether nothing is left of the epoch after this many of its samples."""
        return samples >= self.end

    def state_dict(self) -> dict[str, Any]:
        """Return the places of all lanes, for the checkpoint. All ranks call it, and rank 0 gets them."""
        places = dict(chain(self.resumed.items(), *(own.items() for own in gather_objects(self.places))))
        if isinstance(self.stream, Stateful):
            places = places or {0: [self.stream.state]}
        state = {"places": places, "number": self.number, "end": self.end, "shards": self.shards}
        return {"stream": state | {"slots": self.layout.slots, "turns": self.layout.turns}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved places, once set_epoch() is called."""
        self.layout = Layout(self.batch, state["slots"], state["turns"])
        self.resumed, self.number = state["places"], state["number"]
        self.end, self.shards = state["end"], state["shards"]


class StreamLoader(PrefetchLoader):
    """Loads this rank's parts of global batches until no rank has samples; it looks one step ahead."""

    def __init__(
        self, stream: Stream, sampler: StreamSampler, config: Config, device: torch.device, collate: Collate
    ) -> None:
        batches, accum_steps = StreamBatches(stream, collate, config.seed), sampler.accum_steps
        if not isinstance(config.workers, int):  # as many as need no lane of another one
            spare, turns = workers_for(batches, config), sampler.layout.turns * accum_steps
            config = replace(config, workers=max((n for n in range(1, spare + 1) if turns % n == 0), default=0))
        super().__init__(batches, sampler, config, device)
        timeout = timedelta(seconds=seconds_to_wait(config, dist.get_backend()))
        # The ranks agree on the CPU: with NCCL, the CPU would wait for the GPU in each step.
        self.group: Any = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=timeout)

    def _loaded(self) -> Iterator[Part]:
        """Yield the parts of each step; the first says how many they are, and whether another step follows."""
        parts, first = super()._loaded(), self.sampler.number
        ahead: list[Part] = []
        over: dict[int, bool] = {}  # by lane of this rank
        for number in count(first):
            own: list[Part] = [*islice(parts, self.sampler.accum_steps)]
            for part in own:
                over |= part.about.over
            unread = number - first + 1 < self.sampler.layout.turns
            *samples, alive = self._agree([*(part.about.samples for part in own), unread or not all(over.values())])
            if any(samples):
                yield from ahead
                used = max(place for place, total in enumerate(samples, start=1) if total)
                own[0].about.step = used, sum(samples)
                ahead = own[:used]
            if not alive:
                if ahead:
                    ahead[0].about.is_last = True
                yield from ahead
                return

    def _next(self) -> str:
        return f"part {self.arrived + 1} of a stream"

    def _agree(self, own: list[int]) -> list[int]:
        """Return the sums of these numbers over all ranks."""
        awaited, OWN_WAIT.what = OWN_WAIT.what, None  # now it waits for others
        sums = torch.tensor(own)
        dist.all_reduce(sums, group=self.group)
        OWN_WAIT.what = awaited
        found: list[int] = sums.tolist()
        return found


class TrainingStream(StreamLoader, TrainingLoader):
    """This rank's part of a stream, in the micro-batches of each step."""

    def __init__(self, stream: Stream, config: Config, env: DistEnv, device: torch.device, collate: Collate) -> None:
        """Begin. Raises UserError without --steps."""
        if not config.steps:
            raise UserError("data.py: the training set is a stream, whose length is not known: give --steps")
        sampler = StreamSampler(stream, config.global_batch_size, env, config.seed, config.accum_steps)
        super().__init__(stream, sampler, config, device, collate)

    def _steps(self) -> Iterator[MicroBatches]:
        parts = iter(self)
        for first in parts:
            number, samples = first.about.step
            self.sampler.advance(samples, is_last=first.about.is_last)
            yield MicroBatches(self._opened(chain([first], islice(parts, number - 1))), number, samples)

    def _opened(self, parts: Iterable[Part]) -> Iterator[Any]:
        for part in parts:
            BATCH.counts = part.about.samples > 0
            self.sampler.keep(part.about)
            yield part.batch


class EvaluationStream(StreamLoader, EvaluationLoader):
    """This rank's part of a stream, each sample once."""

    def __init__(self, stream: Stream, config: Config, env: DistEnv, device: torch.device, collate: Collate) -> None:
        batch = max(config.global_batch_size // config.accum_steps, env.world_size)
        super().__init__(stream, StreamSampler(stream, batch, env, config.seed), config, device, collate)

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        self.sampler.set_epoch(0)
        try:
            for part in PrefetchLoader.__iter__(self):
                BATCH.counts = part.about.samples > 0
                yield part.batch, BATCH.counts
        finally:
            BATCH.counts = True


def first_sample(stream: Stream, collate: Collate, seed: int) -> tuple[BatchDataset, list[StreamBatch]]:
    """Return what loads the first sample of a stream, and the batch to load: the same on all ranks."""
    alone = StreamSampler(stream, 1, DistEnv(rank=0, local_rank=0, world_size=1, local_world_size=1), seed)
    return StreamBatches(stream, collate, seed), [next(iter(alone))]
