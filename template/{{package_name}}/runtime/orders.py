"""Orders of the training set for Data(order=...): by weights, by shares of several sets, by length, by tokens.

An order is a function of the size of the set, the seed and the epoch. It returns the indices of this epoch: an array,
or an object that computes any part of one. If it depends on these three numbers alone, and all epochs have the same
length, a run resumes at any step with any number of processes, and trains on the same samples.
"""

import operator
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .exits import UserError
from .permutation import Permutation, uniform

BLOCK = 100_000  # samples in which a mixture has its exact shares
LEAST_GROUPS = 4  # of fewer, all epochs would have nearly the same batches (as in transformers)
Whole = NDArray[np.int64]


class Indices(Protocol):
    """The indices of an epoch, such as a NumPy array."""

    def __len__(self) -> int: ...
    def __getitem__(self, positions: Whole, /) -> Any:
        """Return the indices at these positions, an array of the same shape."""


Order = Callable[[int, int, int], Indices]


@dataclass(frozen=True)
class Computed:
    """The indices of an epoch, of which each part is computed by itself."""

    samples: int
    compute: Callable[[Whole], Whole]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, positions: Whole) -> Whole:
        return self.compute(positions)


def weighted(weights: Any, *, replacement: bool = True, samples: int | None = None) -> Order:
    """Return an order in which samples are as frequent as their weights, of shape (size of the set,).

    With replacement, an epoch has any number of samples (default: the size of the set), drawn independently. Without,
    each sample comes at most once (default: all whose weight is not 0), as torch.multinomial() draws them; this takes
    time and memory for arrays of the set's size when an epoch begins.

    Raises UserError if a weight is negative or not finite, if all are 0, or if too few are above 0.
    """
    column = as_column(weights, "weighted() needs weights")
    check_proportions(column, "weighted() needs weights")
    candidates, cumulative = np.flatnonzero(column), column.cumsum()
    cumulative /= cumulative[-1]
    number = (len(column) if replacement else len(candidates)) if samples is None else as_integer(samples, "samples")
    if not 0 < number <= (number if replacement else len(candidates)):
        limit = "" if replacement else f" and at most {len(candidates)}, the number of weights above 0"
        raise UserError(f"data.py: weighted() needs samples of at least 1{limit}, not {number}")

    def order(size: int, seed: int, epoch: int) -> Indices:
        check_size(size, len(column), "weights of weighted()")
        if replacement:
            return Computed(number, lambda at: cumulative.searchsorted(uniform(at, seed, epoch), side="right"))
        # The smallest exponential variables: Efraimidis and Spirakis, Weighted Random Sampling with a Reservoir, 2006.
        times = -np.log1p(-uniform(candidates, seed, epoch)) / column[candidates]
        return candidates[times.argsort(kind="stable")[:number]]

    return order


class Mixture:
    """An order that mixes the sets of a ConcatDataset by shares: Mixture([web, books], [0.7, 0.3]).

    Each set is gone through in a random order, then in another one. An epoch continues where the one before ended, so
    all samples of a set with a small share come in time. In any n samples of an epoch, a set has n times its share, to
    within 2 * (number of sets - 1) samples.
    """

    def __init__(self, sets: Sequence[Sized], shares: Any, *, samples: int | None = None) -> None:
        """Mix sets by shares of any sum. An epoch has this many samples (default: as many as the sets have together).

        Raises UserError if a share is negative, not finite, or too small, or if its set is empty.
        """
        try:
            self.sizes = np.array([len(each) for each in sets])
        except TypeError as error:
            raise UserError(f"data.py: Mixture() needs a list of datasets: {error}") from error
        column = as_column(shares, "Mixture() needs shares")
        check_proportions(column, "Mixture() needs shares")
        check_size(len(sets), len(column), "shares of Mixture()", "sets")
        self.counts = np.diff(np.rint(BLOCK * column.cumsum() / column.sum()).astype(np.int64), prepend=0)
        if ((column > 0) & (np.minimum(self.counts, self.sizes) == 0)).any():
            raise UserError(f"data.py: Mixture() needs shares of 0 or at least {1 / BLOCK:g}, and 0 for an empty set")
        self.samples = int(self.sizes.sum()) if samples is None else as_integer(samples, "samples")
        if self.samples < 1:
            raise UserError(f"data.py: Mixture() needs samples of at least 1, not {samples}")
        # In a block, sample i of the c of a set comes at a random time between i / c and (i + 1) / c.
        owners = np.repeat(np.arange(len(sets)), self.counts)
        turns = np.arange(BLOCK) - (self.counts.cumsum() - self.counts)[owners]
        sequence = ((turns + uniform(turns, 0)) / self.counts[owners]).argsort(kind="stable")
        self.owners, self.turns = owners[sequence], turns[sequence]

    def __call__(self, size: int, seed: int, epoch: int) -> Indices:
        """Return the indices of an epoch, of which each part is computed by itself."""
        check_size(size, int(self.sizes.sum()), "sets of Mixture()")
        return Computed(self.samples, partial(self._compute, seed, epoch * self.samples))

    def _compute(self, seed: int, first: int, positions: Whole) -> Whole:
        blocks, places = np.divmod(first + positions, BLOCK)
        owners = self.owners[places]
        passes, turns = np.divmod(blocks * self.counts[owners] + self.turns[places], self.sizes[owners])
        indices: Whole = (self.sizes.cumsum() - self.sizes)[owners]
        for owner in np.unique(owners).tolist():
            for each in np.unique(passes[owners == owner]).tolist():
                chosen = (owners == owner) & (passes == each)
                indices[chosen] += Permutation(int(self.sizes[owner]), seed, owner, each)[turns[chosen]]
        return indices


def by_length(lengths: Any, *, batch: int, group: int = 50) -> Order:
    """Return an order in which samples of like length come together, so that batches need little padding.

    A permutation is cut into groups of `group` batches. Each group is sorted by the lengths, of shape (size of the
    set,), and cut into batches; then all batches are shuffled. Give the global batch size as `batch`: no micro-batch
    then has samples of two. Each sample comes once. This takes time and memory for arrays of the set's size when an
    epoch begins. After LengthGroupedSampler of transformers.
    """
    column = as_column(lengths, "by_length() needs lengths")
    batch, group = as_integer(batch, "batch"), as_integer(group, "group")
    if batch < 1 or group < 1:
        raise UserError(f"data.py: by_length() needs batch and group of at least 1, not {batch} and {group}")

    def order(size: int, seed: int, epoch: int) -> Indices:
        check_size(size, len(column), "lengths of by_length()")
        batches = size // batch
        in_group = batch * max(1, min(group, batches // LEAST_GROUPS))
        # The rest is not sorted: the sampler drops some of it.
        whole, rest = np.split(Permutation(size, seed, epoch)[np.arange(size)], [batches * batch])
        whole = whole[np.lexsort((column[whole], np.arange(len(whole)) // in_group))].reshape(batches, batch)
        return np.concatenate([whole[Permutation(batches, seed, epoch, 1)[np.arange(batches)]].ravel(), rest])

    return order


@dataclass(frozen=True)
class Batched:
    """The indices of an epoch, in global batches of these sizes."""

    indices: Whole
    sizes: Whole

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, positions: Whole) -> Whole:
        return self.indices[positions]


@dataclass(frozen=True)
class Batches:
    """An order that sorts samples by length, longest first, cuts batches at these places, and shuffles the batches."""

    lengths: NDArray[np.float64]
    ends: list[int]  # the first is 0

    def __call__(self, size: int, seed: int, epoch: int) -> Batched:
        """Return the indices of an epoch: samples of equal length are in another order in each."""
        check_size(size, len(self.lengths), "lengths of tokens_per_batch()")
        longest_first = np.lexsort((Permutation(size, seed, epoch)[np.arange(size)], -self.lengths))
        batches, sizes = np.split(longest_first, self.ends[1:-1]), np.diff(self.ends)
        shuffled = Permutation(len(sizes), seed, epoch, 1)[np.arange(len(sizes))]
        return Batched(np.concatenate([batches[each] for each in shuffled]), sizes[shuffled])


def tokens_per_batch(lengths: Any, tokens: int) -> Order:
    """Return an order with as many samples in each global batch as fit into this number of tokens, padding included.

    In each batch, the number of samples times the largest of their lengths, of shape (size of the set,), is at most
    `tokens`. This takes the place of --global-batch-size in training. Lengths are rounded up to 16 steps for each
    power of two; chance decides which samples of one rounded length come together. Each sample comes once, and all
    epochs have the same sizes of batches, shuffled. An epoch takes time and memory for arrays of the set's size.
    As --max-tokens of fairseq, but for all ranks together.

    Raises UserError if a length is below 1 or above `tokens`.
    """
    column, tokens = as_column(lengths, "tokens_per_batch() needs lengths"), as_integer(tokens, "tokens")
    if column.min() < 1 or column.max() > tokens:
        found = f"lengths from {column.min():g} to {column.max():g} and {tokens} tokens"
        raise UserError(f"data.py: tokens_per_batch() needs lengths from 1 to the number of tokens, not {found}")
    step = np.maximum(1, 2.0 ** (np.floor(np.log2(column)) - 4))
    rounded = np.minimum(np.ceil(column / step) * step, column.max())
    longest_first, ends = np.sort(rounded)[::-1], [0]
    while ends[-1] < len(column):
        ends.append(min(ends[-1] + int(tokens // longest_first[ends[-1]]), len(column)))
    if len(ends) > 2:  # the last batch has what is left, which may be a single sample
        ends[-2] = min(ends[-2], (ends[-3] + ends[-1] + 1) // 2)
    return Batches(rounded, ends)


def as_column(values: Any, needed: str) -> NDArray[np.float64]:
    """Return a list, an array or a tensor as an array of shape (n,). Raises UserError if it is none of numbers."""
    try:
        column = np.asarray(values.detach().cpu().double() if isinstance(values, Tensor) else values, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"data.py: {needed} that are numbers: {error}") from error
    if column.ndim != 1 or not len(column):
        raise UserError(f"data.py: {needed} of shape (n,), not {column.shape}")
    if np.isnan(column).any():
        raise UserError(f"data.py: {needed} that are numbers, and number {np.isnan(column).argmax()} is NaN")
    return column


def as_integer(number: Any, name: str) -> int:
    """Return a whole number, also one of NumPy. Raises UserError if it is none."""
    try:
        return operator.index(number)
    except TypeError as error:
        raise UserError(f"data.py: {name} of an order must be a whole number, not {number!r:.40}") from error


def check_proportions(column: NDArray[np.float64], needed: str) -> None:
    """Raise UserError unless the numbers can be divided by their sum, and are shares then."""
    if (column < 0).any() or not 0 < column.sum() < np.inf:
        raise UserError(f"data.py: {needed} of at least 0, all finite, and one above 0")


def check_size(size: int, own: int, what: str, of: str = "samples in the training set") -> None:
    """Raise UserError if an order is made for another number of samples or sets than there are."""
    if own != size:
        raise UserError(f"data.py: {what} are for {own}, but there are {size} {of}")
