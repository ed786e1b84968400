"""How batches are loaded and come to the device."""

import errno
import logging
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pickle import PicklingError
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .. import data
from ..config import Config
from .collation import BatchDataset, can_be_pinned, digest, explained, map_tensors, numbered, remedy
from .collectives import BATCH, check_ranks_agree, gather, on_all_ranks, on_each_node
from .devices import own_cores
from .exits import STOP_SIGNALS, UserError, end_with_parent, in_one_line, is_out_of_memory
from .launcher import DistEnv
from .metrics import Progress
from .orders import Batches
from .sampling import Batch, Data, EvaluationSampler, ResumableDistributedSampler, Stream, global_micro_batch_size
from .seeding import seed_everything
from .task_functions import check_names
from .watchdog import OWN_WAIT, STATUS

MOST_PER_CORE = 32  # workers for each core of a rank: a number beyond is a mistake, and would fill the memory
MOST_WORKERS = 8  # of a rank
Collate = Callable[[list[Any]], Any] | None
PERIOD = 20.0  # seconds of training, after which the log may say how much of them went into waiting for data


class Loaders(NamedTuple):
    """This rank's part of the datasets of data.py."""

    training: "TrainingLoader"
    evaluation: "dict[str, EvaluationLoader]"  # by the name of the set, in the order of load_data()
    test: "dict[str, EvaluationLoader]"


def load(config: Config, env: DistEnv, device: torch.device) -> Loaders:
    """Deal the datasets of data.py out to the ranks.

    Raises UserError if data is missing, if the ranks differ, if the batch cannot be split, or if task.py has a
    misspelt name.
    """
    own = agreed_data(config, env)
    if isinstance(own.train, Stream):
        from .streams import TrainingStream  # which other data has no use for

        global_micro_batch_size(config, env, samples=config.global_batch_size)
        stream = TrainingStream(own.train, config, env, device, own.collate)
        return Loaders(stream, *loaders_to_evaluate(own, config, env, device))
    sized = isinstance(own.order, Batches)
    micro_batch = 0 if sized else global_micro_batch_size(config, env, len(own.train))
    order = own.order, config.accum_steps
    sampler = ResumableDistributedSampler(len(own.train), micro_batch, env, config.seed, *order)
    if own.order is not None:
        check_order(sampler, later=config.epochs > 1 or config.steps > 0)
    training = TrainingLoader(own.train, sampler, config, device, own.collate)
    return Loaders(training, *loaders_to_evaluate(own, config, env, device))


def check_order(sampler: ResumableDistributedSampler, *, later: bool) -> None:
    """Raise UserError if an order is another one when it is asked again, or on another rank, in two epochs if later."""
    first, again = sampler.excerpt(), sampler.excerpt(epoch=0)
    if not np.array_equal(first, again):
        raise UserError("data.py: an order must depend on size, seed and epoch alone: this one is another at each call")
    last = sampler.excerpt(epoch=1) if later else again
    if len({*gather(digest(torch.from_numpy(np.append(first, last))))}) > 1:
        raise UserError("data.py: the order of the samples is not the same on all ranks: let load_data() make it so")


def agreed_data(config: Config, env: DistEnv) -> Data:
    """Return what load_data() returns, the same on all ranks. Raises UserError as load() does."""
    check_names()
    if prepare := getattr(data, "prepare", None):
        STATUS.phase = "in prepare() of data.py"
        on_each_node(partial(without_exit, "prepare", prepare, config), leads=env.local_rank == 0)
    STATUS.phase = "in load_data() of data.py"
    loaded = on_all_ranks(partial(load_own, config))
    datasets = {"training": loaded.train, **loaded.evaluation, **loaded.test}
    STATUS.phase = "comparing samples"
    digests = partial(digests_of, datasets, loaded.collate, config)
    check_ranks_agree(config, digests if env.world_size > 1 else dict, **datasets)
    STATUS.phase = "starting"
    for name in (*loaded.evaluation, *loaded.test):
        if not len(datasets[name]):
            raise UserError(f"data.py: the {name} set is empty: load_data() must return samples to evaluate on")
    return loaded


def loaders_to_evaluate(
    own: Data, config: Config, env: DistEnv, device: torch.device
) -> "tuple[dict[str, EvaluationLoader], dict[str, EvaluationLoader]]":
    """Return loaders of the evaluation sets and of the test sets, whose batches are about as large as in training."""
    size = max(1, config.global_batch_size // config.accum_steps // env.world_size)

    def loader(dataset: Any) -> EvaluationLoader:
        if isinstance(dataset, Stream):
            from .streams import EvaluationStream

            return EvaluationStream(dataset, config, env, device, own.collate)
        sampler = EvaluationSampler(len(dataset), size, env)
        return EvaluationLoader(dataset, sampler, config, device, own.collate)

    evaluation = {name: loader(each) for name, each in own.evaluation.items()}
    return evaluation, {name: loader(each) for name, each in own.test.items()}


def load_own(config: Config) -> Data:
    """Return the datasets of this rank. Without --timeout, load_data() may take as long as it needs."""
    OWN_WAIT.what = (lambda: "load_data() of data.py") if config.timeout else None
    try:
        return checked(without_exit("load_data", data.load_data, config))
    finally:
        OWN_WAIT.what = None  # from here on this rank waits for others


def without_exit(name: str, work: Callable[[Config], Any], config: Config) -> Any:
    """Call a function of data.py. Raises UserError if it calls sys.exit(), of which other ranks would know nothing."""
    try:
        return work(config)
    except SystemExit as error:
        raise UserError(f"data.py: {name}() must return, and calls sys.exit({error.code!r})") from error


def checked(returned: Any) -> Data:
    """Return what load_data() has returned, with all sets by name. Raises UserError if it is not what it must return.

    A pair is a training set and an evaluation set.
    """
    if not isinstance(returned, Data):
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            found = f"{len(returned)} things" if isinstance(returned, tuple | list) else type(returned).__name__
            wanted = "Data(train=..., evaluation=...), or two datasets, to train and to validate on"
            raise UserError(f"data.py: load_data() must return {wanted}, not {found}")
        returned = Data(*returned)
    whole: Data = returned
    evaluation, test = by_name(whole.evaluation, "validation"), by_name(whole.test, "test")
    named = [("training", whole.train), *evaluation.items(), *test.items()]
    names = [name for name, _ in named]
    if not evaluation or len({"train", *names}) <= len(names):
        wanted = "one to evaluate on, and each with a name of its own, which train and training are not"
        raise UserError(f"data.py: load_data() must return sets, {wanted}; it returned {', '.join(names)}")
    sets = {name: checked_set(name, dataset) for name, dataset in named}
    if isinstance(sets["training"], Stream) and whole.order is not None:
        raise UserError("data.py: an order is for a set with a length: a stream has shuffle in its place")
    evaluation, test = {name: sets[name] for name in evaluation}, {name: sets[name] for name in test}
    return replace(whole, train=sets["training"], evaluation=evaluation, test=test)


def checked_set(name: str, dataset: Any) -> Any:
    """Return a dataset, which is a Stream if it has no __getitem__. Raises UserError if it cannot be dealt out."""
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    if isinstance(inner, IterableDataset | Stream) or not hasattr(inner, "__getitem__"):
        from .streams import as_stream

        return as_stream(name, dataset)
    try:
        len(dataset)
    except Exception as error:
        raise UserError(f"data.py: the {name} set has no length: {in_one_line(error)}") from error
    return dataset


def by_name(sets: Any, name: str) -> dict[str, Any]:
    """Return datasets by their names; this is the name of one alone, and None is none."""
    if isinstance(sets, Mapping):
        return {str(each): dataset for each, dataset in sets.items()}
    return {} if sets is None else {name: sets}


def digests_of(datasets: dict[str, Any], collate: Collate, config: Config) -> dict[str, str | None]:
    """Return a digest of the first, middle and last sample of each set; None if one cannot be loaded.

    If workers load the data, one loads these samples: workers would inherit files that this process opens.
    """
    digests: dict[str, str | None] = dict.fromkeys(datasets)
    for name, dataset in datasets.items():
        batches: list[Any]
        if isinstance(dataset, Stream):
            from .streams import first_sample

            places = [0]
            whole, batches = first_sample(dataset, collate, config.seed)
        else:
            places = sorted({0, len(dataset) // 2, max(0, len(dataset) - 1)})
            whole, batches = BatchDataset(dataset, collate), [Batch([place], (place,)) for place in places]
        OWN_WAIT.what = partial("samples {} of the {} set".format, places, name)
        with suppress(Exception), seed_everything(config.seed, 0):
            workers = min(1, workers_for(dataset, config))
            forked = "fork" if workers and sys.platform == "linux" else None  # which starts soonest
            loader = loader_of(whole, batches, workers, multiprocessing_context=forked)
            loaded = [each.batch for each in loader]
            if not any(isinstance(each, Exception) for each in loaded):
                digests[name] = digest([getattr(dataset, "shards", None), loaded])
    OWN_WAIT.what = None
    return digests


def loader_of(dataset: BatchDataset, sampler: Iterable[Any], workers: int, **options: Any) -> DataLoader[Any]:
    """Return PyTorch's loader of the whole batches that a sampler yields."""
    signals = partial(outlive_signals, os.getpid())
    options |= {"generator": torch.Generator()}  # else each epoch would draw from the global RNG
    options |= {"batch_size": None, "num_workers": workers, "worker_init_fn": signals}
    return DataLoader(dataset, sampler=sampler, **options)


class PrefetchLoader:
    """Loads the batches of a sampler, with persistent workers, and moves them to the device."""

    phase = "evaluating"

    def __init__(
        self, dataset: Any, sampler: Iterable[Any], config: Config, device: torch.device, collate: Collate = None
    ) -> None:
        self.dataset = dataset if isinstance(dataset, BatchDataset) else BatchDataset(dataset, collate)
        self.sampler: Any = sampler
        self.arrived = 0  # batches
        self.device = device
        self.layout = torch.channels_last if config.channels_last else torch.preserve_format
        module: Any = torch.get_device_module(device)
        # Of a GPU: its streams. The CPU computes at once, and MPS has one queue.
        self.gpu = module if device.type != "cpu" and hasattr(module, "Stream") else None
        self.workers = workers_for(dataset, config)
        self.copies = self.gpu.Stream(device) if self.gpu and self.workers else None
        self.loader: DataLoader[Any] | None = None  # without workers, it would only take 40 us of each step
        if self.workers:
            pinned = self.gpu is not None
            self.loader = loader_of(self.dataset, sampler, self.workers, persistent_workers=True, pin_memory=pinned)

    def __iter__(self) -> Iterator[Any]:
        STATUS.phase = self.phase
        moved: Iterator[Any] = map(self._move, self._loaded())
        if self.copies:  # without workers, this would also advance the rank's random generators
            # One ahead: the next copy begins before a step that the CPU may wait for.
            moved = (batch for batch, _ in pairwise(chain(moved, [None])))
        self.arrived = 0
        while True:
            OWN_WAIT.what = self._awaited
            try:
                found = next(moved, None)
            except UserError as error:
                error.should_report = True  # no other rank has these batches
                raise
            OWN_WAIT.what = None
            if found is None:
                return
            batch, copied = found
            if self.gpu and copied:
                self.gpu.current_stream().wait_event(copied)
            yield batch

    def _loaded(self) -> Iterator[Any]:
        """Yield the batches as they are loaded. Raises RuntimeError, as DataLoader does, if a worker is gone."""
        with signals_held_back():
            here = map(self.dataset.__getitem__, self.sampler)
            batches = here if self.loader is None else from_workers(self.loader)
        for each in batches:
            self.arrived += 1
            if isinstance(each.batch, Exception):
                raise each.batch
            yield each.batch

    def _awaited(self) -> str:
        """Return which batch has not come, and from where."""
        workers = workers_of(self.loader)
        worker = workers[self.arrived % len(workers)] if workers else None
        return f"{self._next()}, from the worker with process ID {worker.pid}" if worker else self._next()

    def _next(self) -> str:
        return numbered(next(islice(self.sampler, self.arrived, None), Batch([], ())).indices)

    def _move(self, batch: Any) -> tuple[Any, Any]:
        """Return a batch on the device, and what the GPU must wait for before it is there."""
        if self.gpu is None or self.copies is None:
            return map_tensors(batch, self._to_device, "to", self.device), None
        # It may take the memory of a batch that the GPU still reads. It is needed a step later: that does not delay it.
        self.copies.wait_stream(self.gpu.current_stream())
        with self.gpu.stream(self.copies):  # so the GPU copies a batch while it computes the step before
            moved = map_tensors(batch, self._to_device, "to", self.device)
        return moved, self.copies.record_event()

    def _to_device(self, tensor: Tensor) -> Tensor:
        layout = self.layout if tensor.dim() == 4 else torch.preserve_format
        if self.gpu is None or not can_be_pinned(tensor):
            return tensor.to(self.device, memory_format=layout)
        return tensor.pin_memory().to(self.device, memory_format=layout, non_blocking=True)


class MicroBatches:
    """The micro-batches of one optimizer step; each is loaded when its turn comes."""

    def __init__(self, batches: Iterator[Any], number: int, samples: int) -> None:
        self.batches = batches
        self.number = number
        self.samples = samples  # over all ranks
        self.waited = 0.0  # seconds
        self.counter: AbstractContextManager[Any] = nullcontext()  # in which the first one is computed

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.number):
            STATUS.phase = "loading data"
            began = time.perf_counter()
            batch = next(self.batches)
            self.waited += time.perf_counter() - began
            STATUS.phase = "training"
            with self.counter:
                yield batch
            self.counter = nullcontext()


class TrainingLoader(PrefetchLoader):
    """This rank's part of the training set, in the micro-batches of each step; an epoch's last step may have fewer.

    If the loop waits for data for more than a fifth of its time, the log says so now and then.
    """

    phase = "loading data"

    def __init__(
        self,
        dataset: Any,
        sampler: ResumableDistributedSampler,
        config: Config,
        device: torch.device,
        collate: Collate = None,
    ) -> None:
        super().__init__(dataset, sampler, config, device, collate)
        self.sampler = sampler
        self.accum_steps = config.accum_steps
        self.total_steps = config.steps or config.epochs * len(self)
        self.waited = self.passed = 0.0  # seconds

    def steps_from(self, progress: Progress) -> Iterator[MicroBatches]:
        """Yield the micro-batches of each step, from where the run has come to, until nothing is left to train."""
        while not progress.is_done():
            self.sampler.set_epoch(progress.epoch, skip=progress.samples_in_epoch)
            for step in self._steps():
                began = time.perf_counter()
                yield step
                if progress.is_done():
                    break
                if progress.samples_in_epoch:  # else the time of an evaluation is in it
                    self._add_times(step.waited, time.perf_counter() - began)
            progress.start_next_epoch()  # if the loop has not done so

    def _steps(self) -> Iterator[MicroBatches]:
        """Yield the micro-batches of each step that is left of the epoch."""
        batches, left = iter(self), len(self.sampler)
        while left:
            number = min(self.accum_steps, left)
            yield MicroBatches(batches, number, self.sampler.samples_of(len(self.sampler) - left, number))
            left -= number

    def __len__(self) -> int:
        """Return the steps that are left of the epoch."""
        return math.ceil(len(self.sampler) / self.accum_steps)

    def _add_times(self, waited: float, whole: float) -> None:
        self.waited += waited
        self.passed += whole
        if self.passed > PERIOD:
            if self.waited > 0.2 * self.passed:
                share = 100 * self.waited / self.passed
                logging.info("waiting for data takes %.0f %% of the time: try more --workers", share)
            self.waited = self.passed = 0.0


class EvaluationLoader(PrefetchLoader):
    """This rank's part of a set: each batch, and whether it counts, or only takes part in collectives."""

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        try:
            for batch, cell in zip(super().__iter__(), self.sampler, strict=True):
                BATCH.counts = cell.counts
                yield batch, cell.counts
        finally:
            BATCH.counts = True


def workers_for(dataset: Any, config: Config) -> int:
    """Return how many processes load a dataset for this rank. Raises UserError if they are too many for the node."""
    if isinstance(config.workers, int):
        most = MOST_PER_CORE * own_cores()
        if config.workers > most:
            raise UserError(f"--workers {config.workers} is too much for the cores of a rank: give at most {most}")
        return config.workers
    # To pass what lies in memory from one process to another would take longer than to load it.
    return 0 if is_in_memory(dataset) else min(MOST_WORKERS, own_cores() - 1)


def is_in_memory(dataset: Any) -> bool:
    """Return whether a dataset says so, or all that it is made of."""
    if isinstance(dataset, Subset):
        return is_in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(is_in_memory, dataset.datasets))
    return bool(getattr(dataset, "in_memory", isinstance(dataset, TensorDataset)))


# An iterator that cannot be made has none, and would print a traceback when it is deleted.
_MultiProcessingDataLoaderIter._shutdown = True


def from_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers of a loader, and return what yields their batches. Raises UserError if they cannot start."""
    starting = not workers_of(loader)
    try:
        torch.multiprocessing.get_context().Lock()  # which a loader needs; without, it would end with a traceback
        batches = iter(loader)
    except (OSError, TypeError, AttributeError, PicklingError) as error:
        if is_out_of_memory(error):
            raise
        reason = error.strerror if isinstance(error, OSError) else in_one_line(error)
        advice = remedy(error) or "give /dev/shm memory to write to, or --workers 0"
        raise UserError(f"--workers: processes that load data cannot start: {reason}: {advice}") from error
    for worker in workers_of(loader) if starting else ():
        Finalize(None, worker.kill, exitpriority=0)  # else this process would wait at its end for one that hangs
    # DataLoader's handler would raise in the middle of anything, such as a save. The loader also checks its workers
    # while it waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return passed_on(batches, loader)


def passed_on(batches: Iterator[Any], loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches. Raises RuntimeError, as DataLoader does, if a process that passes one on is gone."""
    try:
        for each in batches:
            if isinstance(each.batch, OSError | EOFError):
                raise each.batch
            yield each
    except (RuntimeError, OSError, EOFError) as error:
        if str(error).startswith("Caught "):  # by the worker, in the dataset
            raise
        if remedy(error):
            raise explained(error, "a process that loads data cannot send a batch") from error
        ended = wait([worker.sentinel for worker in workers_of(loader)], timeout=1)
        if isinstance(error, OSError | EOFError) and not ended:
            lives = "--workers: a process that loads data lives, and does not hand on its batch"
            raise UserError(f"{lives}: ulimit -n 65536 lets it open more files, or give --workers 0") from error
        killed = [-worker.exitcode for worker in workers_of(loader) if (worker.exitcode or 0) < 0]
        how = f"killed by signal: {signal.Signals(killed[0]).name}" if killed else "exited unexpectedly"
        raise RuntimeError(f"DataLoader worker {how}") from error


def workers_of(loader: DataLoader[Any] | None) -> list[Any]:
    """Return the processes of a loader, if it has started them."""
    return getattr(getattr(loader, "_iterator", None), "_workers", [])


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Inside, signals that ask the job to stop wait; processes that are started there never receive them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_signals(rank: int, worker: int) -> None:
    """Keep a worker alive when the whole job gets a stop signal: its rank still has to complete a step.

    It ends when its rank, which has this process ID, wants it to, or is gone.
    """
    end_with_parent(rank)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if sys.platform == "linux":
        Thread(target=end_at_a_signal_of, args=(rank,), daemon=True).start()
        # Else Python could not clean up after too many open files, and would print a traceback.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        Finalize(None, resource.setrlimit, (resource.RLIMIT_NOFILE, (hard, hard)), exitpriority=1)
    sys.excepthook = partial(wait_for_files, sys.excepthook)


def wait_for_files(otherwise: Callable[..., Any], kind: type[BaseException], error: BaseException, where: Any) -> None:
    """Sleep after an error of too many open files.

    Python's thread that hands on batches tries again at once, and would print thousands of tracebacks a second.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        time.sleep(0.1)
    else:
        otherwise(kind, error, where)


def end_at_a_signal_of(process: int) -> None:
    """Wait for a TERM that this process has sent, such as DataLoader sends to workers that are stuck."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != process:
        pass
    os._exit(0)
