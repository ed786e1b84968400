"""What load_data() of data.py returns, and which rank gets which of its samples, in which order."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ..config import Config
from .exits import UserError
from .launcher import DistEnv
from .orders import Batched, Indices, Order
from .permutation import Permutation

EXCERPT = 1000  # samples of an order to compare
COMPUTED_AT_ONCE = 1 << 14  # samples of the order: one by one, each would take 200 times as long


@dataclass
class Stream:
    """Samples that are read from shards, such as files, one after the other; nobody knows how many there are.

    Return it from load_data() as a set to train or to evaluate on. Each sample comes once in an epoch, and a run
    resumes where it was, on any number of ranks and workers. Several shards for each worker of each rank are best:
    where they are too few, several workers read the same ones, and each decodes its own samples alone.
    """

    shards: Sequence[Any]  # the same on all ranks, in the same order
    read: Callable[[Any], Iterable[Any]]  # yields the samples of a shard: the same ones, in the same order, each time
    decode: Callable[[Any], Any] | None = None  # makes what is collated; only for own samples; may draw random numbers
    shuffle: int = 0  # samples, over all ranks, that are in memory to be mixed; 0: shards and samples in their order

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.shards)


@dataclass
class Data:
    """The datasets, each a Stream or with __len__ and __getitem__(index), and how batches are made of them."""

    train: Any
    evaluation: Any  # a dataset, or several by name: the first one decides which checkpoint is the best
    test: Any = None  # the same; evaluated once, with the best weights, when the run is complete
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch of samples; None: as PyTorch's default_collate()
    order: Order | None = None  # of the training samples in each epoch; None: a random one


class Batch(NamedTuple):
    """What a sampler yields: the samples to load, and what makes their augmentation repeatable."""

    indices: list[int]
    rng_key: tuple[int, ...]  # seeds the generators: another one for every batch of the training
    counts: bool = True  # else it only takes part, in an evaluation of fewer samples than ranks
    epoch: int | None = None  # of the training


class ResumableDistributedSampler(Sampler[Batch]):
    """Deals the training set out to the ranks, in micro-batches of equal size, from any place in an epoch.

    Let p = order(size of the set, seed, epoch) be the n indices of the epoch (default: a Permutation of all samples),
    m the size of a micro-batch over all ranks, b = m / world_size, and skip the samples of the epoch that are trained
    already. Then micro-batch i of rank r is

        p[skip + i*m + r*b : skip + i*m + (r+1)*b]        for 0 <= i < (n - skip) // m

    So all ranks get equally many samples and steps, no place of the order is used twice, its n % m last ones wait for
    another epoch, and who trains on what depends on the seed, the epoch and the place in it alone: a run can resume
    with another number of processes. Resuming late in an epoch costs no more than starting it.

    An order of tokens_per_batch() has batches of other sizes: each is cut into micro-batches, and each of these into
    parts for the ranks, which differ by one sample at most. No sample waits.
    """

    def __init__(
        self,
        size: int,
        global_micro_batch_size: int,
        env: DistEnv,
        seed: int,
        order: Order | None = None,
        accum_steps: int = 1,
    ) -> None:
        """Begin with epoch 0 of a set. Raises UserError if the order is wrong or does not fill a micro-batch."""
        self.size = size
        self.global_micro_batch_size = global_micro_batch_size  # the smallest one, if they differ
        self.env = env
        self.seed = seed
        self.order = Permutation if order is None else order
        self.accum_steps = accum_steps
        self.epoch, self.skip = 0, 0
        self.indices = self._indices_of(0)
        self.samples = len(self.indices)  # of each epoch
        self.ends = self._ends()
        if self.ends is not None:
            self.global_micro_batch_size = int(np.diff(self.ends, prepend=0).min())
            if self.global_micro_batch_size < env.world_size:
                parts = f"world size {env.world_size} x --accum-steps {accum_steps}"
                raise UserError(f"data.py: a batch has fewer samples than {parts}: give tokens_per_batch() more tokens")
        elif order is not None and self.samples < global_micro_batch_size:
            filled = f"do not fill a micro-batch of {global_micro_batch_size} over all ranks"
            raise UserError(f"data.py: the {self.samples} samples of the order {filled}: make an epoch longer")

    def excerpt(self, epoch: int | None = None) -> NDArray[np.int64]:
        """Return some indices of this epoch, and the sizes of its batches; if one is given, ask the order for it."""
        indices = self.indices if epoch is None else self._indices_of(epoch)
        positions = np.linspace(0, len(indices) - 1, min(len(indices), EXCERPT)).astype(np.int64)
        found = self._at(positions, indices).astype(np.int64)
        return np.append(found, indices.sizes) if isinstance(indices, Batched) else found

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Choose the epoch to iterate over, and how many of its samples to leave out because they are trained.

        Raises UserError if the order of this epoch has another length than that of epoch 0, or other batches than those
        that are trained.
        """
        if epoch != self.epoch:
            self.indices = self._indices_of(epoch)
            if len(self.indices) != self.samples:
                both = f"{self.samples} samples in epoch 1 and {len(self.indices)} in epoch {epoch + 1}"
                raise UserError(f"data.py: the order must have the same length in every epoch, not {both}")
            self.ends = self._ends()
        self.epoch, self.skip = epoch, skip
        if self.ends is not None and skip not in (0, *self.ends[self.accum_steps - 1 :: self.accum_steps]):
            remedy = "resume with the same lengths and tokens, or from a checkpoint at the end of an epoch"
            raise UserError(f"data.py: no batch of epoch {epoch + 1} ends after {skip} samples: {remedy}")

    def is_over(self, samples: int) -> bool:
        """Return whether no micro-batch is left of an epoch after this many of its samples."""
        return samples + self.global_micro_batch_size > self.samples

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs in addition to the number of trained samples: nothing."""
        return {}

    def __len__(self) -> int:
        """Micro-batches that are left of the epoch."""
        if self.ends is not None:
            return len(self.ends) - self._trained()
        return (self.samples - self.skip) // self.global_micro_batch_size

    def samples_of(self, first: int, number: int) -> int:
        """Return the samples, over all ranks, of this number of those micro-batches that are left, from one on."""
        if self.ends is not None:
            start = self._trained() + first
            return int(self.ends[start + number - 1] - (self.ends[start - 1] if first else self.skip))
        return number * self.global_micro_batch_size

    def __iter__(self) -> Iterator[Batch]:
        if self.ends is not None:
            yield from self._in_batches(self.ends[self._trained() :])
            return
        size = self.global_micro_batch_size // self.env.world_size
        first = self.skip + self.env.rank * size
        at_once = max(1, COMPUTED_AT_ONCE // size)
        for i in range(0, len(self), at_once):
            starts = first + self.global_micro_batch_size * np.arange(i, min(i + at_once, len(self)))
            chosen = self._at(starts[:, None] + np.arange(size))
            for start, indices in zip(starts.tolist(), chosen.tolist(), strict=True):
                yield Batch(indices, (self.seed, self.epoch, start), epoch=self.epoch)

    def _in_batches(self, ends: NDArray[np.int64]) -> Iterator[Batch]:
        """Yield this rank's parts of the micro-batches that end at these places."""
        rank, ranks = self.env.rank, self.env.world_size
        for start, end in pairwise([self.skip, *ends.tolist()]):
            own = np.arange(start + (end - start) * rank // ranks, start + (end - start) * (rank + 1) // ranks)
            yield Batch(self._at(own).tolist(), (self.seed, self.epoch, int(own[0])), epoch=self.epoch)

    def _trained(self) -> int:
        """Return how many micro-batches of different sizes are trained already."""
        assert self.ends is not None
        return int(self.ends.searchsorted(self.skip, side="right"))

    def _ends(self) -> NDArray[np.int64] | None:
        """Return the places where micro-batches end, if the order has batches of different sizes."""
        if not isinstance(self.indices, Batched):
            return None
        sizes, parts = self.indices.sizes[:, None], np.arange(1, self.accum_steps + 1)
        ends: NDArray[np.int64] = (sizes.cumsum()[:, None] - sizes + sizes * parts // self.accum_steps).ravel()
        return ends

    def _indices_of(self, epoch: int) -> Indices:
        """Return the order of an epoch. Raises UserError if it is none."""
        found: Any = self.order
        if callable(found):
            try:
                found = found(self.size, self.seed, epoch)
            except TypeError as error:
                if error.__traceback__ and error.__traceback__.tb_next:  # it comes from within the order
                    raise
                raise UserError(f"data.py: an order takes size, seed and epoch: {error}") from error
            if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
                return np.asarray(found) if isinstance(found, Sequence) else found
        needed = "an order must be a function of size, seed and epoch that returns an array of indices"
        raise UserError(f"data.py: {needed}, not {type(found).__name__}")

    def _at(self, positions: NDArray[np.int64], indices: Indices | None = None) -> NDArray[np.int64]:
        """Return the indices at some places of an epoch: this one, or one that is given.

        Raises UserError if the set has no such indices.
        """
        indices = self.indices if indices is None else indices
        try:
            found: NDArray[np.int64] = np.asarray(indices[positions])
        except (TypeError, ValueError, LookupError) as error:
            wrong = f"{type(indices).__name__}, of which NumPy takes no part: {error}"
            raise UserError(f"data.py: an order must return an array of indices, not a {wrong}") from error
        if found.shape != positions.shape or found.dtype.kind not in "iu":
            what = f"{found.dtype} of shape {found.shape}"
        elif found.min() < 0 or found.max() >= self.size:
            what = f"{found[(found < 0) | (found >= self.size)][0]}"
        else:
            return found
        raise UserError(f"data.py: an order must give whole numbers from 0 to {self.size - 1}, not {what}")


class EvaluationSampler(Sampler[Batch]):
    """Deals a set out to the ranks for an evaluation: each sample once, and equally many batches to each rank.

    Let there be b batches for each of r ranks, n samples and c = b * r cells. Then batch i of rank k is cell i*r + k,
    and each cell has n // c samples or, if it is one of the first n % c, one more: so at most one batch is larger on
    some ranks than on others. A cell without any gets one of another rank, and does not count.
    """

    def __init__(self, samples: int, batch_size: int, env: DistEnv) -> None:
        self.samples = samples
        self.env = env
        self.cells = math.ceil(samples / (batch_size * env.world_size)) * env.world_size

    def __len__(self) -> int:
        """Batches of each rank."""
        return self.cells // self.env.world_size

    def __iter__(self) -> Iterator[Batch]:
        size, larger = divmod(self.samples, self.cells)
        for cell in range(self.env.rank, self.cells, self.env.world_size):
            first, own = min(cell * size + min(cell, larger), self.samples - 1), size + (cell < larger)
            yield Batch([*range(first, first + max(own, 1))], (first,), counts=own > 0)


def global_micro_batch_size(config: Config, env: DistEnv, samples: int) -> int:
    """Return the samples of a micro-batch over all ranks. Raises UserError if the global batch cannot be split."""
    size, accum_steps = config.global_batch_size, config.accum_steps
    parts = env.world_size * accum_steps
    if size % parts:
        raise UserError(
            f"--global-batch-size {size} is no multiple of {parts}, world size {env.world_size} x --accum-steps "
            f"{accum_steps}: {sizes_that_fit(size, accum_steps, env.world_size)}"
        )
    if not samples:
        raise UserError("data.py: the training set is empty: load_data() must return samples to train on")
    if size // accum_steps > samples:
        raise UserError(
            f"the {samples} training samples do not fill a micro-batch of {size // accum_steps} over all ranks: "
            "give a smaller --global-batch-size, or start fewer processes"
        )
    return size // accum_steps


def sizes_that_fit(size: int, accum_steps: int, world_size: int) -> str:
    """Return which global batches, and which world sizes for this one, would do and are nearest."""
    parts = world_size * accum_steps
    smaller = size - size % parts
    said = f"{f'{smaller} or ' if smaller else ''}{smaller + parts} would do"
    fitting = [number for number in range(1, size + 1) if size % (number * accum_steps) == 0]
    nearest = [n for n in fitting if n < world_size][-1:] + [n for n in fitting if n > world_size][:1]
    return f"{said}, or a world size of {' or '.join(map(str, nearest))}" if nearest else said
