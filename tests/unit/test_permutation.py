"""The order of the samples: a permutation, random in all that is tested here, and as cheap at its end as elsewhere."""

import tracemalloc
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from generator.answers.questions import TEMPLATE
from tests.conftest import Measured
from tests.support.training import module_of


@pytest.fixture(scope="module")
def shuffling() -> ModuleType:
    return module_of(next((TEMPLATE / "template").rglob("permutation.py")))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 1437, 4096, 4097, 100_003])
def test_every_sample_occurs_once(size: int, shuffling: ModuleType) -> None:
    assert np.array_equal(np.sort(shuffling.Permutation(size, 0, 3)[np.arange(size)]), np.arange(size))


@pytest.mark.parametrize("first", [10, 10**9])
def test_a_part_of_a_huge_order_costs_the_same_anywhere(
    first: int, shuffling: ModuleType, monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    order = shuffling.Permutation(2 * 10**9, 0, 0)
    computed: list[int] = []

    def scramble(numbers: Any, given: Any = order.scramble) -> Any:
        computed.append(len(numbers))
        return given(numbers)

    monkeypatch.setattr(order, "scramble", scramble)
    tracemalloc.start()
    entries = order[np.arange(first, first + 64)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(entries.tolist())) == 64
    assert entries.min() >= 0
    assert entries.max() < 2 * 10**9
    measured("shuffling", f"64 of 2 * 10^9 samples from {first:g} on: numbers computed for each", sum(computed) / 64)
    assert sum(computed) < 64 * 4, "the next power of four is 2.1 times as large"
    assert peak < 100_000, f"{peak} bytes"


def test_large_seeds_have_orders_of_their_own(shuffling: ModuleType) -> None:
    """NumPy's seeds are words of 32 bits, of which a longer seed has two."""
    pairs = [(0, 0), (0, 1), (1, 0), (2**32, 0), (2**32, 1), (2**64 + 1, 0)]
    assert len({tuple(shuffling.Permutation(100, seed, epoch)[np.arange(100)]) for seed, epoch in pairs}) == len(pairs)


def test_the_order_never_changes(shuffling: ModuleType) -> None:
    """A run that is resumed with a later version must go on in the order in which it began."""
    assert shuffling.Permutation(10, 0, 0)[np.arange(10)].tolist() == [9, 6, 4, 2, 7, 8, 1, 5, 0, 3]
    assert shuffling.Permutation(10**12, 1, 2)[np.arange(3)].tolist() == [736419393329, 186049478415, 912549583989]
