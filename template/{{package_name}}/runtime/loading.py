"""How batches are loaded and come to the device."""

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from .. import data
from ..config import Config
from .batches import BatchDataset, Pinnable, can_be_pinned, map_tensors
from .collectives import check_ranks_agree, on_every_rank
from .exits import STOP_SIGNALS, UserError, end_with_parent
from .heartbeat import HERE
from .launcher import World
from .meter import Progress
from .placement import own_cores
from .sampling import Batch, ResumableDistributedSampler, evaluation_batches, micro_batch_size

MOST_PER_CORE = 32  # workers for each core of a rank: a number beyond is a mistake, and would fill the memory
MOST_WORKERS = 8  # of a rank
PERIOD = 20.0  # seconds of training, after which the log may say how much of them went into waiting for data


def load(config: Config, world: World, device: torch.device) -> "tuple[TrainingBatches, DeviceBatches]":
    """Deal the datasets of data.py out to the ranks.

    Raises UserError if data is missing, if the ranks differ, or if the batch cannot be split.
    """
    training, validation = on_every_rank(lambda: data.load_data(config))
    check_ranks_agree(config, training=training, validation=validation)
    if not len(validation):
        raise UserError("data.py: the validation set is empty: load_data() must return samples to evaluate on")
    micro_batch = micro_batch_size(config, world, len(training))
    sampler = ResumableDistributedSampler(len(training), micro_batch, world, config.seed)
    shard = evaluation_batches(len(validation), micro_batch // world.world_size, world)
    return TrainingBatches(training, sampler, config, device), DeviceBatches(validation, shard, config, device)


class DeviceBatches:
    """The batches of a sampler, loaded, by worker processes that live as long as this, and moved to the device."""

    phase = "evaluating"

    def __init__(self, dataset: Dataset[Any], sampler: Sampler[Batch], config: Config, device: torch.device) -> None:
        self.dataset = BatchDataset(dataset)
        self.sampler = sampler
        self.device = device
        self.layout = torch.channels_last if config.channels_last else torch.preserve_format
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.workers = workers_for(dataset, config)
        self.loader: DataLoader[Any] | None = None  # without workers, it would only take 40 us of each step
        if self.workers:
            self.loader = DataLoader(
                self.dataset,
                sampler=sampler,
                batch_size=None,  # the sampler yields whole batches
                num_workers=self.workers,
                persistent_workers=True,
                worker_init_fn=partial(outlive_signals, os.getpid()),
                pin_memory=device.type == "cuda",
                generator=torch.Generator(),  # else each epoch would draw from the global RNG
            )

    def __iter__(self) -> Iterator[Any]:
        HERE.phase = self.phase
        with signals_held_back():
            loaded = from_workers(self.loader) if self.loader else map(self.dataset.__getitem__, self.sampler)
        moved: Iterator[Any] = map(self._move, loaded)
        if self.copies and self.loader:  # without workers, the random generators of the rank would be ahead, too
            # One ahead: the next copy begins before a step that the CPU may wait for.
            moved = (batch for batch, _ in pairwise(chain(moved, [None])))
        for batch, copied in moved:
            if copied:
                torch.cuda.current_stream().wait_event(copied)
            yield batch

    def _move(self, loaded: Pinnable) -> tuple[Any, torch.cuda.Event | None]:
        """Return a batch on the device, and what the GPU must wait for before it is there."""
        if isinstance(loaded.batch, UserError):
            raise loaded.batch
        return map_tensors(loaded.batch, self._to_device), self.copies.record_event() if self.copies else None

    def _to_device(self, tensor: Tensor) -> Tensor:
        layout = self.layout if tensor.dim() == 4 else torch.preserve_format
        if self.copies is None or not can_be_pinned(tensor):
            return tensor.to(self.device, memory_format=layout)
        with torch.cuda.stream(self.copies):  # so the GPU copies a batch while it computes the step before
            moved = tensor.pin_memory().to(self.device, memory_format=layout, non_blocking=True)
        moved.record_stream(torch.cuda.current_stream())  # else a later copy could take its memory while it is read
        return moved


class MicroBatches:
    """The micro-batches of one optimizer step; each is loaded when its turn comes."""

    def __init__(self, batches: Iterator[Any], number: int, samples: int) -> None:
        self.batches = batches
        self.number = number
        self.samples = samples  # over all ranks
        self.waited = 0.0  # seconds

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.number):
            HERE.phase = "loading data"
            began = time.perf_counter()
            batch = next(self.batches)
            self.waited += time.perf_counter() - began
            HERE.phase = "training"
            yield batch


class TrainingBatches(DeviceBatches):
    """This rank's part of the training set, in the micro-batches of each step; an epoch's last step may have fewer.

    If the loop waits for data for more than a fifth of its time, the log says so now and then.
    """

    phase = "loading data"

    def __init__(
        self, dataset: Dataset[Any], sampler: ResumableDistributedSampler, config: Config, device: torch.device
    ) -> None:
        super().__init__(dataset, sampler, config, device)
        self.sampler: ResumableDistributedSampler = sampler
        self.accum_steps = config.accum_steps
        self.total_steps = config.epochs * len(self)
        self.waited = self.trained = 0.0  # seconds

    def go_on(self, progress: Progress) -> "TrainingBatches":
        """Choose the epoch to iterate over, from where it has come to. Returns itself."""
        self.sampler.set_epoch(progress.epoch, skip=progress.samples_in_epoch)
        return self

    def is_finished(self, progress: Progress) -> bool:
        """Return whether nothing is left of the epoch."""
        return progress.samples_in_epoch + self.sampler.micro_batch_size > self.sampler.samples

    def __len__(self) -> int:
        """Return the steps that are left of the epoch."""
        return math.ceil(len(self.sampler) / self.accum_steps)

    def __iter__(self) -> Iterator[MicroBatches]:
        batches, left = super().__iter__(), len(self.sampler)
        while left:
            number = min(self.accum_steps, left)
            left -= number
            step = MicroBatches(batches, number, number * self.sampler.micro_batch_size)
            began = time.perf_counter()
            yield step
            self.waited += step.waited
            self.trained += time.perf_counter() - began - step.waited
            if self.waited + self.trained > PERIOD:
                self._tell()

    def _tell(self) -> None:
        share = self.waited / (self.waited + self.trained)
        if share > 0.2:
            logging.info("waiting for data takes %.0f %% of the time: try more --workers", 100 * share)
        self.waited = self.trained = 0.0


def workers_for(dataset: Dataset[Any], config: Config) -> int:
    """Return how many processes load a dataset for this rank. Raises UserError if they are too many for the machine."""
    if isinstance(config.workers, int):
        most = MOST_PER_CORE * own_cores()
        if config.workers > most:
            raise UserError(f"--workers {config.workers} is too much for the cores of a rank: give at most {most}")
        return config.workers
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    # What returns whole batches has them in memory: passing them between processes takes longer than making them.
    return 0 if hasattr(dataset, "__getitems__") else min(MOST_WORKERS, own_cores() - 1)


def from_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers of a loader, and return what yields their batches. Raises UserError if they cannot start."""
    try:
        torch.multiprocessing.get_context().Lock()  # which a loader needs; without, it would end with a traceback
    except OSError as error:
        advice = "give /dev/shm memory to write to, or --workers 0"
        raise UserError(f"--workers: processes that load data cannot start: {error.strerror}: {advice}") from error
    batches = iter(loader)
    # Its handler would raise an error wherever the rank is by then, such as within a save. The loader looks after its
    # workers while it waits for them, too.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return passed_on(batches)


def passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches. Raises RuntimeError, as DataLoader does, if a process that passes one on is gone."""
    try:
        yield from batches
    except (OSError, EOFError) as error:
        if str(error).startswith("Caught "):  # by the worker, in the dataset
            raise
        raise RuntimeError("DataLoader worker exited unexpectedly") from error


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Inside, signals that ask the job to stop wait; processes that are started there never receive them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_signals(rank: int, worker: int) -> None:
    """Let a worker process load on if the whole job is asked to stop: its rank still has a step to complete.

    It ends when its rank, which has this process ID, wants it to, or is gone.
    """
    end_with_parent(rank)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if sys.platform == "linux":
        Thread(target=end_at_a_signal_of, args=(rank,), daemon=True).start()


def end_at_a_signal_of(process: int) -> None:
    """Wait for a TERM that this process has sent, such as DataLoader sends to workers that are stuck."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != process:
        pass
    os._exit(0)
