"""Which rank gets which samples, and how they are loaded."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from .config import Config
from .distributed import World
from .exits import UserError


class Batch(NamedTuple):
    """What a sampler yields: the samples to load, and what makes their augmentation repeatable."""

    indices: list[int]
    rng_key: tuple[int, ...]  # other numbers for every batch of a run


class ResumableDistributedSampler(Sampler[Batch]):
    """Deals the training set out to the ranks, in micro-batches of equal size, from any place in an epoch.

    Let p be the permutation of range(n) that (seed, epoch) decides, m the size of a micro-batch over all ranks,
    b = m / world_size, and skip the samples of the epoch that are trained already. Then micro-batch i of rank r is

        p[skip + i*m + r*b : skip + i*m + (r+1)*b]        for 0 <= i < (n - skip) // m

    So all ranks get equally many samples and steps, no sample is used twice, the n % m last ones of the permutation
    wait for another epoch, and who trains on what depends on the seed, the epoch and the place in it alone: a run can
    go on with another number of processes.
    """

    def __init__(self, samples: int, micro_batch_size: int, world: World, seed: int) -> None:
        self.samples = samples
        self.micro_batch_size = micro_batch_size
        self.world = world
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Choose the epoch to iterate over, and how many of its samples to leave out because they are trained."""
        self.epoch = epoch
        self.skip = skip

    def __len__(self) -> int:
        """Micro-batches that are left of the epoch."""
        return (self.samples - self.skip) // self.micro_batch_size

    def __iter__(self) -> Iterator[Batch]:
        rng = torch.Generator().manual_seed(hash((self.seed, self.epoch)))
        order = torch.randperm(self.samples, generator=rng)
        size = self.micro_batch_size // self.world.world_size
        first = self.skip + self.world.rank * size
        for i in range(len(self)):
            start = first + i * self.micro_batch_size
            yield Batch(order[start : start + size].tolist(), (self.seed, self.epoch, start))


def evaluation_batches(samples: int, batch_size: int, world: World) -> list[Batch]:
    """Deal a set out to the ranks with no sample twice and none left out, so that the last batches may be uneven."""
    own = list(range(world.rank, samples, world.world_size))
    return [Batch(own[start : start + batch_size], (start,)) for start in range(0, len(own), batch_size)]


class BatchDataset(Dataset[Any]):
    """Loads whole batches, with torch's RNG seeded for each and put back afterwards.

    So augmentation is the same after a resume and with any number of workers, and dropout does not notice.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, batch: Batch) -> Any:
        before = torch.get_rng_state()
        # torch.manual_seed() would seed the GPUs too, which takes 100 times as long.
        torch.default_generator.manual_seed(hash(batch.rng_key))
        try:
            if hasattr(self.dataset, "__getitems__"):
                return self.dataset.__getitems__(batch.indices)
            return default_collate([self.dataset[index] for index in batch.indices])
        finally:
            torch.set_rng_state(before)


def make_loader(
    dataset: Dataset[Any], sampler: Sampler[Batch] | list[Batch], config: Config, device: torch.device
) -> DataLoader[Any]:
    """Load the batches of the sampler, with --workers processes that live as long as the loader."""
    return DataLoader(
        BatchDataset(dataset),
        sampler=sampler,
        batch_size=None,  # the sampler yields whole batches
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # else each epoch would draw from the global RNG
    )


def windows(loader: DataLoader[Any], size: int) -> Iterator[list[Any]]:
    """Group micro-batches into those of one optimizer step; the last window of an epoch may be shorter."""
    batches = iter(loader)
    while window := list(itertools.islice(batches, size)):
        yield window


def micro_batch_size(config: Config, world: World, samples: int) -> int:
    """Samples of a micro-batch over all ranks. Raises UserError where the global batch cannot be split."""
    parts = world.world_size * config.accum_steps
    size = config.global_batch_size
    if size % parts:
        smaller = size - size % parts
        raise UserError(
            f"--global-batch-size {size} is no multiple of {parts}, world size {world.world_size} x --accum-steps "
            f"{config.accum_steps}: {f'{smaller} or ' if smaller else ''}{smaller + parts} would do"
        )
    if size // config.accum_steps > samples:
        raise UserError(
            f"the {samples} training samples do not fill a micro-batch of {size // config.accum_steps} over all ranks: "
            "give a smaller --global-batch-size, or start fewer processes"
        )
    return size // config.accum_steps
