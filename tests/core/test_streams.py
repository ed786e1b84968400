"""Streams: each sample once, the same batches on any ranks and workers, and the same ones after any stop."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import chain, count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from tests.conftest import Package, of_package

streams = of_package("runtime.streams")
Batches = list[list[Any]]

# Ranks, micro-batches of a step, and workers of each rank.
SETTINGS = [(1, 2, 0), (2, 1, 0), (2, 1, 3), (2, 2, 2), (4, 1, 2), (4, 2, 5), (3, 1, 1)]
SIZES = {
    "one shard": [29],
    "fewer shards than ranks": [7, 30, 11],
    "many shards": [5] * 40,
    "empty shards": [0, 0, 3, 0, 21, 0, 0, 0, 40, 0, 1, 0],
    "a shard that is much larger": [*[2] * 20, 100],
    "one sample": [0, 1, 0],
    "lanes for many workers": [3] * 130,
}


class Counting(IterableDataset[float]):
    """An iterable that can tell where it is. It draws its order, and random numbers that it adds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.place = 0

    def __iter__(self) -> Iterator[float]:
        self.order = torch.randperm(self.size).tolist()
        return self

    def __next__(self) -> float:
        if self.place == self.size:
            raise StopIteration
        self.place += 1
        drawn = random.random() + np.random.random() + torch.rand(()).item()
        return float(self.order[self.place - 1] + drawn / 3)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.fixture
def stream(package: Package) -> Callable[..., Any]:
    def get(sizes: list[int], shuffle: int = 0) -> Any:
        def read(shard: int) -> Iterable[tuple[int, int]]:
            return ((shard, i) for i in range(sizes[shard]))

        return package("runtime.sampling").Stream(range(len(sizes)), read, shuffle=shuffle)

    return get


@pytest.fixture
def dealt(package: Package, streams: Any) -> Callable[..., tuple[Batches, dict[str, Any]]]:
    """Return the global batches of an epoch as ranks and workers get them, and the state after the last one."""

    def get(
        stream: Any,
        ranks: int = 1,
        parts: int = 1,
        workers: int = 0,
        *,
        batch: int = 12,
        epoch: int = 0,
        most: float = np.inf,
        state: dict[str, Any] | None = None,
    ) -> tuple[Batches, dict[str, Any]]:
        envs = [package("runtime.launcher").DistEnv(rank, rank, ranks, ranks) for rank in range(ranks)]
        samplers = [streams.StreamSampler(stream, batch, env, 7, parts) for env in envs]
        for sampler in samplers:
            if state:
                sampler.load_state_dict(deepcopy(state))
            sampler.set_epoch(epoch, skip=1 if state else 0)
        requests = [iter(sampler) for sampler in samplers]
        loaders = [[streams.StreamBatches(deepcopy(stream), list, 7) for _ in range(workers or 1)] for _ in envs]
        batches: Batches = []
        over: dict[int, bool] = {}
        first = samplers[0].number
        for number in count(first):
            loaded = [
                loaders[rank][((number - first) * parts + i) % (workers or 1)][next(requests[rank])].batch
                for rank in range(ranks)
                for i in range(parts)
            ]
            for part in loaded:
                over |= part.about.over
            if found := [*chain(*(part.batch[: part.about.samples] for part in loaded))]:
                batches.append(found)
                for place, part in enumerate(loaded):
                    samplers[place // parts].keep(part.about)
            if len(batches) == most or (number - first + 1 >= samplers[0].layout.turns and all(over.values())):
                break
        kept = dict(chain(samplers[0].resumed.items(), *(sampler.places.items() for sampler in samplers)))
        end = {"places": kept, "number": samplers[0].number, "end": np.inf, "shards": len(stream.shards)}
        return batches, end | {"slots": samplers[0].layout.slots, "turns": samplers[0].layout.turns}

    return get


@pytest.mark.parametrize("shuffle", [0, 1, 30])
@pytest.mark.parametrize("kind", SIZES)
def test_each_sample_comes_once_and_batches_depend_on_no_ranks_and_workers(
    kind: str, shuffle: int, stream: Callable[..., Any], dealt: Callable[..., Any]
) -> None:
    sizes = SIZES[kind]
    own = stream(sizes, shuffle)
    whole, _ = dealt(own, epoch=2)
    every = [(shard, i) for shard, size in enumerate(sizes) for i in range(size)]
    assert sorted(chain(*whole)) == every
    assert max(map(len, whole)) <= 12
    for setting in random.Random(f"{kind} {shuffle}").sample(SETTINGS, 4):
        assert dealt(own, *setting, epoch=2)[0] == whole, setting


@pytest.mark.parametrize("shuffle", [0, 30])
@pytest.mark.parametrize("kind", SIZES)
def test_after_any_batch_the_rest_comes_on_any_ranks(
    kind: str, shuffle: int, stream: Callable[..., Any], dealt: Callable[..., Any]
) -> None:
    own, chance = stream(SIZES[kind], shuffle), random.Random(0)
    whole, _ = dealt(own)
    for place in range(1, len(whole)) if len(whole) < 10 else chance.sample(range(1, len(whole)), 10):
        batches, state = dealt(own, *chance.choice(SETTINGS), most=place)
        middle, state = dealt(own, *chance.choice(SETTINGS), most=1, state=state)
        assert batches + middle == whole[: place + 1]
        if place + 1 < len(whole):
            assert dealt(own, *chance.choice(SETTINGS), state=state)[0] == whole[place + 1 :], place


def test_an_iterable_with_a_state_goes_on_where_it_was_on_any_ranks(streams: Any, dealt: Callable[..., Any]) -> None:
    own = streams.as_stream("training", Counting(100))
    whole, _ = dealt(own)
    assert sorted(map(int, chain(*whole))) == [*range(100)]
    for setting in SETTINGS:
        batches, state = dealt(own, *setting, most=3)
        assert batches == whole[:3]
        assert dealt(own, *SETTINGS[-1], state=state)[0] == whole[3:], setting


def test_two_sets_that_are_one_iterable_do_not_move_each_other(package: Package, streams: Any) -> None:
    loading, one = package("runtime.data_loading"), Counting(100)
    sets = loading.checked(loading.Data(one, {"first": one, "second": Counting(9)}))
    training, other = sets.train.shards[0], sets.evaluation["first"].shards[0]
    for each in (training, training, other, training):
        next(iter(each))
    assert (training.place, other.place) == (3, 1)
    vars(one)["lock"] = threading.Lock()
    with pytest.raises(
        package("runtime.exits").UserError, match="which is the training set, too, and cannot be copied"
    ):
        loading.checked(loading.Data(one, {"first": one}))


@pytest.mark.parametrize("shards", [{"a": 1}, {1, 2}, 3, None, iter([1])])
def test_shards_that_are_no_list_are_refused(shards: Any, package: Package, streams: Any) -> None:
    with pytest.raises(package("runtime.exits").UserError, match="the shards of the training set must be a list"):
        streams.as_stream("training", package("runtime.sampling").Stream(shards, iter))


def test_shuffled_samples_are_in_another_order_in_each_epoch(
    stream: Callable[..., Any], dealt: Callable[..., Any]
) -> None:
    """Shards are permuted, and within a lane each block: how far samples come from each other is as by chance."""
    own = stream([50] * 8, shuffle=400)
    orders = [[*chain(*dealt(own, epoch=epoch, batch=8)[0])] for epoch in range(20)]
    assert len({*map(tuple, orders)}) == 20
    places = np.array([order.index((0, 0)) for order in orders])
    assert len({*places}) > 12
    neighbours = [abs(order.index((3, i)) - order.index((3, i + 1))) for order in orders for i in range(49)]
    assert 0.25 < np.mean(neighbours) / 400 < 0.4  # a third, if both are anywhere
    in_order = [*chain(*dealt(stream([50] * 8), epoch=3)[0])]
    assert in_order[:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_lanes_have_about_as_many_shards_and_are_for_many_ranks_and_workers(
    stream: Callable[..., Any], streams: Any
) -> None:
    for shards, batch, slots, turns in [
        *((1, 64, 1, 1), (3, 64, 2, 1), (8, 12, 4, 2), (8, 64, 8, 1), (16, 64, 8, 2), (64, 64, 8, 8)),
        *((1000, 256, 64, 8), (7, 64, 4, 1), (100, 48, 8, 8), (5, 7, 1, 2), (300, 64, 16, 8)),
    ]:
        assert streams.layout_of(stream([1] * shards), batch) == (batch, slots, turns), shards


def test_what_is_random_in_decode_depends_on_the_place_alone(package: Package, streams: Any) -> None:
    own = package("runtime.sampling").Stream([0], lambda _: range(9), decode=lambda i: i + torch.rand(()).item())
    env = package("runtime.launcher").DistEnv(0, 0, 1, 1)
    [first, *_] = requests = [next(iter(streams.StreamSampler(own, 4, env, 7))) for _ in range(2)]
    torch.manual_seed(5)
    one, other = (streams.StreamBatches(own, list, 7)[request].batch.batch for request in requests)
    assert one == other != [0, 1, 2, 3]
    assert first.rng_key == (7, 0, 0)


def test_another_batch_size_or_number_of_shards_within_an_epoch_is_refused(
    stream: Callable[..., Any], dealt: Callable[..., Any], package: Package
) -> None:
    _, state = dealt(stream([9] * 8), most=2, batch=8)
    refused = package("runtime.exits").UserError
    with pytest.raises(refused, match="--global-batch-size 12 is no multiple of 8, which the checkpoint needs within"):
        dealt(stream([9] * 8), state=state, batch=12)
    with pytest.raises(refused, match="the stream has 7 shards and had 8 when the epoch began: resume with as many"):
        dealt(stream([9] * 7), state=state, batch=8)
    with pytest.raises(refused, match="the stream has 8 shards and had a length when the epoch began"):
        dealt(stream([9] * 8), state=state | {"places": {}}, batch=8)
    larger, _ = dealt(stream([9] * 8), state=state, batch=16)
    assert sorted(chain(*larger)) == [(shard, i) for shard in range(8) for i in range(2, 9)]


def test_a_stream_of_no_samples_is_refused_in_one_line(
    stream: Callable[..., Any], streams: Any, package: Package
) -> None:
    env = package("runtime.launcher").DistEnv(0, 0, 1, 1)
    own = stream([0, 0])
    found = streams.StreamBatches(own, None, 7)[next(iter(streams.StreamSampler(own, 4, env, 7)))].batch
    assert str(found) == "data.py: a stream has no samples: load_data() must return some to train and evaluate on"


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda shard: np.load(shard), "sample of shard '/none.tar' cannot be loaded: FileNotFoundError"),
        (
            lambda shard: None,
            "sample of shard '/none.tar' cannot be loaded: TypeError 'NoneType' object is not iterable",
        ),
        (lambda shard: (1 / 0 for _ in range(3)), "sample of shard '/none.tar' cannot be loaded: ZeroDivisionError"),
    ],
)
def test_an_error_names_the_shard(read: Any, error: str, package: Package, streams: Any) -> None:
    own = package("runtime.sampling").Stream(["/none.tar"], read)
    env = package("runtime.launcher").DistEnv(0, 0, 1, 1)
    with pytest.raises(RuntimeError, match=error):
        streams.StreamBatches(own, None, 7)[next(iter(streams.StreamSampler(own, 4, env, 7)))]


class InEpoch(Counting):
    """Another order in each epoch, which is a part of its state."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        order = np.random.RandomState(self.epoch).permutation(self.size)
        while self.place < self.size:
            self.place += 1
            yield float(order[self.place - 1])

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.epoch = state["place"], state["epoch"]


def test_an_iterable_whose_state_has_the_epoch_has_another_order_in_each(streams: Any) -> None:
    """Also in an epoch that comes after half of another one."""
    stream = streams.as_stream("training", InEpoch(20))
    orders = []
    for epoch in (0, 1, 2, 1):
        stream.set_epoch(epoch)
        orders.append(streams.lane_of(stream, [0], 0, (0, epoch, 0), None).take(20 if epoch else 7))
    assert orders[1] == orders[3] == np.random.RandomState(1).permutation(20).tolist()
    assert orders[2] == np.random.RandomState(2).permutation(20).tolist()
