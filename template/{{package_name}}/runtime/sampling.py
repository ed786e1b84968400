"""What load_data() of data.py returns, and which rank gets which of its samples, in which order."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from ..config import Config
from .exits import UserError
from .launcher import DistEnv
from .permutation import Permutation

COMPUTED_AT_ONCE = 1 << 14  # samples of the order: one by one, each would take 200 times as long


@dataclass
class Data:
    """The datasets, each with __len__ and __getitem__(index), and how batches are made of them."""

    train: Any
    evaluation: Any  # a dataset, or several by name: the first one decides which checkpoint is the best
    test: Any = None  # the same; evaluated once, with the best weights, when the run is complete
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch of samples; None: as PyTorch's default_collate()


class Batch(NamedTuple):
    """What a sampler yields: the samples to load, and what makes their augmentation repeatable."""

    indices: list[int]
    rng_key: tuple[int, ...]  # seeds the generators: another one for every batch of the training
    counts: bool = True  # else it only takes part, in an evaluation of fewer samples than ranks
    epoch: int | None = None  # of the training


class ResumableDistributedSampler(Sampler[Batch]):
    """Deals the training set out to the ranks, in micro-batches of equal size, from any place in an epoch.

    Let p = Permutation(n, seed, epoch) be the order of the n samples, m the size of a micro-batch over all ranks,
    b = m / world_size, and skip the samples of the epoch that are trained already. Then micro-batch i of rank r is

        p[skip + i*m + r*b : skip + i*m + (r+1)*b]        for 0 <= i < (n - skip) // m

    So all ranks get equally many samples and steps, no sample is used twice, the n % m last ones of the permutation
    wait for another epoch, and who trains on what depends on the seed, the epoch and the place in it alone: a run can
    resume with another number of processes. Resuming late in an epoch costs no more than starting it.
    """

    def __init__(self, samples: int, global_micro_batch_size: int, env: DistEnv, seed: int) -> None:
        self.samples = samples
        self.global_micro_batch_size = global_micro_batch_size
        self.env = env
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Choose the epoch to iterate over, and how many of its samples to leave out because they are trained."""
        self.epoch = epoch
        self.skip = skip

    def __len__(self) -> int:
        """Micro-batches that are left of the epoch."""
        return (self.samples - self.skip) // self.global_micro_batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = Permutation(self.samples, self.seed, self.epoch)
        size = self.global_micro_batch_size // self.env.world_size
        first = self.skip + self.env.rank * size
        at_once = max(1, COMPUTED_AT_ONCE // size)
        for i in range(0, len(self), at_once):
            starts = first + self.global_micro_batch_size * np.arange(i, min(i + at_once, len(self)))
            for start, indices in zip(starts.tolist(), order[starts[:, None] + np.arange(size)].tolist(), strict=True):
                yield Batch(indices, (self.seed, self.epoch, start), epoch=self.epoch)


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
