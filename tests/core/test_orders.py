"""Orders of the training set: frequencies, shares and lengths as asked for, on any ranks and after any stop."""

import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.conftest import Package, of_package

orders = of_package("runtime.orders")
Array = NDArray[Any]

SIZE, BATCH = 60, 8
WEIGHTS = np.arange(SIZE) % 4.0  # a quarter of them is 0
LENGTHS = np.random.default_rng(0).lognormal(4, 1, SIZE)


def kinds(orders: Any) -> dict[str, Any]:
    """An order of each kind for 60 samples, and one of an owner."""
    return {
        "weighted": orders.weighted(WEIGHTS, samples=103),
        "weighted, once each": orders.weighted(WEIGHTS, replacement=False),
        "mixture": orders.Mixture([range(50), range(10)], [3, 1], samples=103),
        "by length": orders.by_length(LENGTHS, batch=BATCH),
        "own": lambda size, seed, epoch: np.random.default_rng([seed, epoch]).permutation(size),
        "own list": lambda size, seed, epoch: [*range(epoch, size), *range(epoch)],
        "own tensor": lambda size, seed, epoch: torch.arange(size).roll(epoch),
    }


FIRST = {
    "weighted": [7, 15, 27, 7, 51, 11, 13, 2],
    "weighted, once each": [38, 7, 47, 3, 51, 31, 22, 6],
    "mixture": [16, 44, 11, 31, 51, 2, 5, 52],
    "by length": [14, 15, 13, 1, 20, 0, 33, 41],
}
KINDS = [*FIRST, "own", "own list", "own tensor"]


def whole(order: Any, size: int, seed: int = 0, epoch: int = 0) -> Array:
    indices = order(size, seed, epoch)
    return np.array(indices) if isinstance(indices, list) else np.asarray(indices[np.arange(len(indices))])


def is_drawn_from(counts: Array, expected: Array, quantile: float) -> bool:
    """Pearson's test, with the quantile of chi-square for as many degrees of freedom as there are cells, less one."""
    return float(((counts - expected) ** 2 / expected).sum()) < quantile


@pytest.fixture
def sampler(package: Package) -> Callable[..., Any]:
    def get(order: Any, rank: int = 0, ranks: int = 1, size: int = SIZE, seed: int = 0) -> Any:
        env = package("runtime.launcher").DistEnv(rank, rank, ranks, ranks)
        return package("runtime.sampling").ResumableDistributedSampler(size, BATCH, env, seed, order)

    return get


def test_without_an_order_a_sampler_permutes_the_set(sampler: Callable[..., Any], package: Package) -> None:
    own = sampler(None)
    own.set_epoch(3)
    permutation = package("runtime.permutation").Permutation(SIZE, 0, 3)
    assert [index for batch in own for index in batch.indices] == permutation[np.arange(56)].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 2**40])
def test_any_number_of_ranks_sees_the_same_from_any_place(
    kind: str, seed: int, orders: Any, sampler: Callable[..., Any]
) -> None:
    order = kinds(orders)[kind]

    def seen(ranks: int, epoch: int, skip: int) -> list[list[int]]:
        parts = []
        for rank in range(ranks):
            own = sampler(order, rank, ranks, seed=seed)
            own.set_epoch(epoch, skip)
            parts.append([batch.indices for batch in own])
        return [[*chain(*batches)] for batches in zip(*parts, strict=True)]

    for epoch in (0, 1, 7):
        expected = whole(order, SIZE, seed, epoch)
        for place in (0, 1, 3):
            batches = expected[place * BATCH : len(expected) // BATCH * BATCH].reshape(-1, BATCH).tolist()
            assert seen(1, epoch, place * BATCH) == seen(2, epoch, place * BATCH) == batches
            assert seen(4, epoch, place * BATCH) == batches
    assert seen(1, 1, 0) != seen(1, 0, 0)


@pytest.mark.parametrize("kind", FIRST)
def test_an_order_never_changes(kind: str, orders: Any) -> None:
    """A run that is resumed with a later version must go on in the order in which it began."""
    assert whole(kinds(orders)[kind], SIZE, 1, 2)[:8].tolist() == FIRST[kind]


@pytest.mark.parametrize("form", [np.asarray, list, torch.tensor, lambda each: torch.tensor(each).bfloat16()])
def test_draws_are_as_frequent_as_weights(form: Callable[[Array], Any], orders: Any) -> None:
    order = orders.weighted(form(WEIGHTS), samples=30_000)
    expected = 60_000 * WEIGHTS / WEIGHTS.sum()
    counts = np.bincount(np.concatenate([whole(order, SIZE, 5, epoch) for epoch in (0, 1)]), minlength=SIZE)
    assert not counts[WEIGHTS == 0].any()
    some = WEIGHTS > 0
    assert is_drawn_from(counts[some], expected[some], 78.7), "the quantile 0.999 for 44 degrees of freedom"
    pairs = whole(order, SIZE, 5, 0).reshape(-1, 2) % 4  # each class of a weight
    frequency = np.outer([0, 1, 2, 3], [0, 1, 2, 3])[1:, 1:].ravel() / 36
    counts = np.bincount(pairs @ [4, 1], minlength=16).reshape(4, 4)[1:, 1:].ravel()
    assert is_drawn_from(counts, 15_000 * frequency, 26.1), "neighbours depend on each other"


def test_a_sample_without_weight_is_not_drawn_by_the_smallest_number(
    orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "uniform", lambda positions, *_: np.zeros(len(positions)))
    assert whole(orders.weighted([0, 0, 1, 0]), 4).tolist() == [2] * 4


def test_draws_without_replacement_are_those_of_multinomial(orders: Any) -> None:
    weights, epochs = np.array([1.0, 2.0, 0.0, 4.0, 3.0]), 20_000
    order = orders.weighted(weights, replacement=False, samples=2)
    found = [tuple(whole(order, 5, 3, epoch).tolist()) for epoch in range(epochs)]
    pairs = [*permutations([0, 1, 3, 4], 2)]
    expected = [epochs * weights[i] / 10 * weights[j] / (10 - weights[i]) for i, j in pairs]
    counts = np.array([found.count(pair) for pair in pairs])
    assert counts.sum() == epochs
    assert is_drawn_from(counts, np.array(expected), 31.3), "the quantile 0.999 for 11 degrees of freedom"


def test_without_replacement_and_by_length_each_sample_comes_at_most_once(orders: Any) -> None:
    for size, epoch in ((60, 0), (61, 3), (5, 0), (1437, 1)):
        ordered = whole(orders.by_length(np.arange(size), batch=BATCH, group=3), size, 0, epoch)
        assert np.array_equal(np.sort(ordered), np.arange(size))
        weights = np.arange(size) % 4.0
        drawn = whole(orders.weighted(weights, replacement=False), size, 0, epoch)
        assert np.array_equal(np.sort(drawn), np.flatnonzero(weights))


SHARES = [[0.7, 0.3], [1, 1, 1], [0.5, 0.3, 0.1999, 0.0001], [5, 0, 2], [1]]


@pytest.mark.parametrize("shares", SHARES)
def test_a_mixture_has_its_shares_in_any_stretch(shares: list[float], orders: Any) -> None:
    sets = [range(1000 * (i + 1)) for i in range(len(shares))]
    size = sum(map(len, sets))
    order = orders.Mixture(sets, shares, samples=70_000)
    owners = np.searchsorted(np.cumsum([len(each) for each in sets]), stream(order, size, 3), side="right")
    for number, share in enumerate(np.array(shares) / sum(shares)):
        # Of any stretch, the error is the difference of those before its end and before its beginning.
        errors = np.append(0, (owners == number).cumsum()) - share * np.arange(len(owners) + 1)
        rounding = 1 if share == 1 / 3 else 0  # which is no multiple of 1 / 100,000
        assert np.ptp(errors) <= 2 * (len(shares) - 1) + rounding
        runs = np.diff(np.flatnonzero(owners == number))
        assert len({*runs.tolist()}) > 1 or share in (0, 1), "a rhythm would give a rank one set alone"


def stream(order: Any, size: int, epochs: int) -> Array:
    return np.concatenate([whole(order, size, 0, epoch) for epoch in range(epochs)])


@pytest.mark.parametrize(("samples", "epochs"), [(333, 40), (33_333, 4)])
def test_a_mixture_goes_through_all_of_a_set_before_it_repeats_a_sample(samples: int, epochs: int, orders: Any) -> None:
    """Also if an epoch has 17 of the 70 samples of a set, and if all epochs have more than a block."""
    sets = [range(1000), range(70), range(70)]
    seen = stream(orders.Mixture(sets, [0.9, 0.05, 0.05], samples=samples), 1140, epochs)
    passes = []
    for first, last in ((0, 1000), (1000, 1070), (1070, 1140)):
        own = seen[(seen >= first) & (seen < last)] - first
        size = last - first
        assert len(own) > 9 * size
        passes.append([own[start : start + size].tolist() for start in range(0, len(own) - size, size)])
        assert all(sorted(each) == [*range(size)] for each in passes[-1])
        assert len({*map(tuple, passes[-1])}) == len(passes[-1]), "another order in each pass"
    assert passes[1][0] != passes[2][0], "and in each set"


def test_by_length_saves_most_of_the_padding_and_shuffles_batches(orders: Any, package: Package) -> None:
    size = 20_000
    lengths = np.random.default_rng(1).lognormal(5, 1, size)
    order = orders.by_length(torch.tensor(lengths), batch=32)
    batches = whole(order, size)[: size // 32 * 32].reshape(-1, 32)
    shuffled = package("runtime.permutation").Permutation(size, 0, 0)[np.arange(batches.size)].reshape(-1, 32)
    assert padding(lengths[shuffled]) > 0.75
    assert padding(lengths[batches]) < 0.25
    assert abs(np.corrcoef(lengths[batches].mean(axis=1), np.arange(len(batches)))[0, 1]) < 0.1
    assert abs(np.corrcoef(lengths[batches].mean(axis=1)[1:], lengths[batches].mean(axis=1)[:-1])[0, 1]) < 0.1
    again = whole(order, size, 0, 1)[: size // 32 * 32].reshape(-1, 32)
    assert not {*map(frozenset, batches.tolist())} & {*map(frozenset, again.tolist())}, "each epoch has its own batches"


def padding(lengths: Array) -> float:
    return float(1 - lengths.sum() / (lengths.max(axis=1) * lengths.shape[1]).sum())


def test_orders_of_huge_sets_take_no_memory(orders: Any, sampler: Callable[..., Any]) -> None:
    order = orders.Mixture([range(10**12), range(10**9)], [1, 1], samples=10**12)
    own = sampler(order, size=10**12 + 10**9)
    own.set_epoch(10**4, 10**11)  # nothing of the epochs before is computed
    tracemalloc.start()
    batch = next(iter(own))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(batch.indices) >= 10**12 > min(batch.indices)
    assert peak < 10 * 2**20


def tokens_of(order: Any, lengths: Array, epoch: int = 0) -> tuple[list[Array], Array]:
    """The batches of an epoch, and the tokens of each with its padding."""
    found = order(len(lengths), 0, epoch)
    batches = np.split(np.asarray(found.indices), found.sizes.cumsum()[:-1])
    return batches, np.array([len(each) * lengths[each].max() for each in batches])


@pytest.mark.parametrize("tokens", [500, 4096, 10**7])
def test_batches_have_as_many_samples_as_fit_into_a_number_of_tokens(tokens: int, orders: Any) -> None:
    lengths = np.random.default_rng(2).lognormal(4, 0.7, 5_000).clip(1, 480).round()
    order = orders.tokens_per_batch(lengths.tolist(), tokens)
    epochs = [tokens_of(order, lengths, epoch) for epoch in range(3)]
    for batches, used in epochs:
        assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(5_000)), "each sample once"
        assert used.max() <= tokens
        assert len(batches) == len(epochs[0][0])
        assert sorted(map(len, batches)) == sorted(map(len, epochs[0][0]))
    batches, used = epochs[0]
    if len(batches) > 1:
        assert lengths.sum() / used.sum() > 0.93, "little padding"
        assert np.sort(used)[2:].mean() > 0.85 * tokens, "full batches, but the last two"
        assert abs(np.corrcoef([lengths[each].mean() for each in batches], np.arange(len(batches)))[0, 1]) < 0.2
        one, other = ({frozenset(each.tolist()) for each in of_epoch if len(each) > 9} for of_epoch, _ in epochs[:2])
        assert len(one & other) < len(one) / 10, "most are of their own epoch"


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 21])
def test_no_batch_is_left_with_a_single_sample_if_it_can_share(count: int, orders: Any) -> None:
    lengths = np.full(count, 7.0)
    batches, used = tokens_of(orders.tokens_per_batch(lengths, 70), lengths)
    assert used.max() <= 70
    assert min(map(len, batches)) >= min(count, 5)


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_ranks_share_batches_of_any_size_from_any_place(accum_steps: int, orders: Any, package: Package) -> None:
    order = orders.tokens_per_batch(LENGTHS.clip(1, 200), 2600)  # batches of 13 samples and more
    found = order(SIZE, 4, 2)
    ends = found.sizes.cumsum().tolist()
    for ranks in (1, 2, 4):
        for place in (0, *ends[:-1]):
            parts = []
            for rank in range(ranks):
                env = package("runtime.launcher").DistEnv(rank, rank, ranks, ranks)
                own = package("runtime.sampling").ResumableDistributedSampler(SIZE, 0, env, 4, order, accum_steps)
                own.set_epoch(2, place)
                batches = [each.indices for each in own]
                assert len(own) == len(batches) == accum_steps * (len(ends) - (ends.index(place) + 1 if place else 0))
                parts.append(batches)
            for of_ranks in zip(*parts, strict=True):
                assert max(map(len, of_ranks)) - min(map(len, of_ranks)) <= 1
            micro_batches = [[*chain(*of_ranks)] for of_ranks in zip(*parts, strict=True)]
            whole = [[*chain(*micro_batches[i : i + accum_steps])] for i in range(0, len(micro_batches), accum_steps)]
            expected = np.split(np.asarray(found.indices), ends[:-1])[len(ends) - len(whole) :]
            assert whole == [each.tolist() for each in expected]
            counts = [own.samples_of(i, accum_steps) for i in range(0, len(own), accum_steps)]
            assert counts == [len(each) for each in expected]
    with pytest.raises(orders.UserError, match=r"no batch of epoch 3 ends after 5 samples: resume with the same"):
        own.set_epoch(2, 5)


REFUSED = {
    "weighted() needs weights of at least 0": lambda o: o.weighted([3.0, -1.0]),
    "weighted() needs weights of at least 0, all": lambda o: o.weighted([0.0, 0.0]),
    "weighted() needs weights of at least 0, all finite": lambda o: o.weighted([1.0, np.inf]),
    "weighted() needs weights that are numbers, and number 1 is NaN": lambda o: o.weighted([1.0, np.nan]),
    "weights of shape (n,), not (2, 1)": lambda o: o.weighted([[1.0], [1.0]]),
    "weights of shape (n,), not (0,)": lambda o: o.weighted([]),
    "samples of an order must be a whole number, not 0.5": lambda o: o.weighted([1.0], samples=0.5),
    "Mixture() needs a list of datasets: object of type 'int' has no len()": lambda o: o.Mixture([3, 4], [1, 1]),
    "batch of an order must be a whole number, not '4'": lambda o: o.by_length([1, 2], batch="4"),
    "tokens of an order must be a whole number, not None": lambda o: o.tokens_per_batch([1, 2], None),
    "weights that are numbers: could not convert": lambda o: o.weighted(["cat"]),
    "samples of at least 1, not 0": lambda o: o.weighted([1.0], samples=0),
    "and at most 1, the number of weights above 0, not 2": lambda o: o.weighted([1, 0], replacement=False, samples=2),
    "weights of weighted() are for 2, but there are 3 samples": lambda o: o.weighted([1, 1])(3, 0, 0),
    "Mixture() needs shares of at least 0, all": lambda o: o.Mixture([range(3), range(3)], [3, -1]),
    "shares of Mixture() are for 2, but there are 1 sets": lambda o: o.Mixture([range(3)], [1, 1]),
    "0 for an empty set": lambda o: o.Mixture([range(3), range(0)], [1, 1]),
    "shares of 0 or at least 1e-05": lambda o: o.Mixture([range(3), range(3)], [1, 1e-6]),
    "Mixture() needs samples of at least 1, not -1": lambda o: o.Mixture([range(3)], [1], samples=-1),
    "sets of Mixture() are for 3, but there are 4 samples": lambda o: o.Mixture([range(3)], [1])(4, 0, 0),
    "by_length() needs batch and group of at least 1": lambda o: o.by_length([1, 2], batch=0),
    "by_length() needs lengths of shape (n,)": lambda o: o.by_length(3, batch=1),
    "lengths of by_length() are for 2, but there are 3 samples": lambda o: o.by_length([1, 2], batch=1)(3, 0, 0),
    "not lengths from 1 to 9 and 8 tokens": lambda o: o.tokens_per_batch([1, 9], 8),
    "not lengths from 0 to 9 and 10 tokens": lambda o: o.tokens_per_batch([0, 9], 10),
    "tokens_per_batch() needs lengths of shape (n,)": lambda o: o.tokens_per_batch(3, 4),
    "of tokens_per_batch() are for 2, but there are 3 samples": lambda o: o.tokens_per_batch([1, 2], 4)(3, 0, 0),
}


@pytest.mark.parametrize("line", REFUSED)
def test_an_order_that_cannot_be_is_refused_in_one_line(line: str, orders: Any) -> None:
    with pytest.raises(orders.UserError, match=rf"^data\.py: [^\n]*{re.escape(line)}[^\n]*$"):
        REFUSED[line](orders)


def an_array(values: Any) -> Callable[[int, int, int], Any]:
    return lambda *_: np.array(values)


REFUSED_BY_SAMPLER: dict[str, Any] = {
    "from 0 to 59, not 60": an_array([60, *range(59)]),
    "from 0 to 59, not -1": an_array([*range(-1, 59)]),
    "not float64 of shape (1, 8)": lambda *_: np.zeros(8),
    "not int64 of shape (1, 8, 1)": lambda *_: np.zeros((8, 1), int),
    "must be a function of size, seed and epoch": [1, 2, 3],
    "that returns an array of indices, not generator": lambda size, *_: (i for i in range(size)),
    "an order takes size, seed and epoch: ": lambda size, seed: np.arange(size),
    "must return an array of indices, not a dict, of which NumPy takes no part": lambda *_: dict.fromkeys(range(60)),
    "the 7 samples of the order do not fill a micro-batch of 8": an_array([*range(7)]),
    "not 60 samples in epoch 1 and 58 in epoch 3": lambda size, seed, epoch: np.arange(size - epoch),
}


def test_a_batch_with_fewer_samples_than_parts_is_refused(orders: Any, package: Package) -> None:
    env = package("runtime.launcher").DistEnv(1, 1, 4, 4)
    order = orders.tokens_per_batch([5] * 60, 35)
    match = r"^data\.py: a batch has fewer samples than world size 4 x --accum-steps 2: give tokens_per_batch\(\) more"
    with pytest.raises(orders.UserError, match=match):
        package("runtime.sampling").ResumableDistributedSampler(60, 0, env, 0, order, 2)


@pytest.mark.parametrize("line", REFUSED_BY_SAMPLER)
def test_a_sampler_refuses_wrong_indices_in_one_line(line: str, orders: Any, sampler: Callable[..., Any]) -> None:
    def all_of_two_epochs() -> Iterator[Any]:
        own = sampler(REFUSED_BY_SAMPLER[line])
        yield from own
        own.set_epoch(2)

    with pytest.raises(orders.UserError, match=rf"^data\.py: [^\n]*{re.escape(line)}[^\n]*$"):
        list(all_of_two_epochs())


def test_an_order_that_is_another_at_each_call_is_refused(sampler: Callable[..., Any], package: Package) -> None:
    """torch.randperm() without a generator is the same on all ranks at the start, and differs at a resume."""
    loading = package("runtime.data_loading")
    with pytest.raises(loading.UserError, match=r"^data\.py: an order must depend on size, seed and epoch alone: this"):
        loading.check_order(sampler(lambda size, *_: torch.randperm(size)), later=False)


def test_progress_counts_the_samples_of_the_order(orders: Any, sampler: Callable[..., Any], package: Package) -> None:
    own = sampler(orders.weighted(WEIGHTS, samples=20))
    progress = package("runtime.metrics").Progress(package("config").Config(), own)
    progress.advance(8, 0.1)
    assert not progress.has_finished_epoch()
    progress.advance(8, 0.1)
    assert (progress.has_finished_epoch(), progress.samples_of_epoch) == (True, 20)
