"""The order is as random, as it is dealt to ranks and batches, as one that is drawn from all orders with equal chance.

Each statistic gives the probability that a really random order is as far from what is expected, in whichever direction
is bad. The seeds are fixed: what passes once passes always.
"""

import math
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from tests.conftest import Render
from tests.support.training import module_of

IMPROBABLE = 1e-6  # a sound order is refused once in a million for each statistic
HUGE = 10**9

Statistic = Callable[[ModuleType], float]


def both_tails(chi_squared: float, freedom: int) -> float:
    """The probability of a chi-squared that is as far from the middle: too uneven is bad, and too even as well."""
    return float(2 * min(stats.chi2.sf(chi_squared, freedom), stats.chi2.cdf(chi_squared, freedom)))


def of_table(counts: NDArray[np.int64]) -> float:
    """The probability of a table of two properties that do not depend on each other."""
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    if not expected.all():
        return 0.0  # a value never occurs, of many draws of few values
    return both_tails(float(((counts - expected) ** 2 / expected).sum()), (counts.shape[0] - 1) * (counts.shape[1] - 1))


def table(rows: NDArray[np.int64], columns: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How often each pair of values below size occurs."""
    return np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)


def entries_are_uniform(shuffling: ModuleType) -> float:
    """A part of a huge order: Kolmogorov and Smirnov. At random places the entries of any order would be uniform."""
    places = np.arange(700_000_000, 700_200_000)
    return float(stats.kstest(shuffling.Permutation(HUGE, 0, 0)[places] / HUGE, "uniform").pvalue)


def neighbours_are_independent(shuffling: ModuleType) -> float:
    """In which 64th of a huge order an entry and the next one fall."""
    parts = shuffling.Permutation(HUGE, 2, 0)[np.arange(400_000)] // (HUGE // 64 + 1)
    return of_table(table(parts[::2], parts[1::2], 64))


def shares_are_independent(shuffling: ModuleType) -> float:
    """Which of 8 ranks gets a sample in an epoch and in the next: batches of 4 for each rank."""
    size, ranks, batch = 99_968, 8, 4
    shares = np.empty((2, size), dtype=np.int64)
    for epoch in (0, 1):
        shares[epoch, shuffling.Permutation(size, 5, epoch)[np.arange(size)]] = np.arange(size) // batch % ranks
    return of_table(table(shares[0], shares[1], ranks))


@pytest.fixture
def shuffling(project: Render) -> ModuleType:
    return module_of(project() / "ddp_project" / "runtime" / "permutation.py")


@pytest.mark.parametrize("statistic", [entries_are_uniform, neighbours_are_independent, shares_are_independent])
def test_an_order_is_as_random_as_one_that_is_drawn(statistic: Statistic, shuffling: ModuleType) -> None:
    probability = statistic(shuffling)
    assert probability > IMPROBABLE, f"a random order is as odd with a probability of {probability:.1g}"


def test_each_order_of_four_samples_is_as_frequent(shuffling: ModuleType) -> None:
    draws = 24_000
    orders = Counter(tuple(shuffling.Permutation(4, key, 0)[np.arange(4)].tolist()) for key in range(draws))
    assert len(orders) == math.factorial(4)
    expected = draws / len(orders)
    chi_squared = sum((count - expected) ** 2 / expected for count in orders.values())
    assert chi_squared < 50, "23 degrees of freedom: above 49.7 once in 1,000 times"
