"""How data is loaded unless the owner says otherwise, and what the log says of a loop that waits for it."""

import importlib
import logging
import random
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from tests.conftest import Package

CORES = 6
CPU, GPU = torch.device("cpu"), torch.device("cuda")
ORDERS = [
    (0, ["copy 1", "step 1", "copy 2", "step 2", "copy 3", "step 3"]),
    (1, ["copy 1", "copy 2", "wait 1", "step 1", "copy 3", "wait 2", "step 2", "wait 3", "step 3"]),
]


@pytest.fixture(scope="module")
def loading(package: Package) -> Iterator[ModuleType]:
    """The module of the default project, on a rank that has six cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield package("runtime.data_loading")
    torch.set_num_threads(before)


class OneByOne(Dataset[Any]):
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor(index)


class Whole(OneByOne):
    """The same in memory, which can return many at once: as what make() makes of their indices."""

    in_memory = True

    def __init__(self, make: Callable[[list[int]], Any] = torch.tensor) -> None:
        super().__init__()
        self.make = make

    def __getitems__(self, indices: list[int]) -> Any:
        return self.make(indices)


def test_data_outside_memory_has_workers_on_spare_cores(loading: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Subset gives batches of anything."""

    def workers(dataset: Dataset[Any], **options: Any) -> int:
        return int(loading.PrefetchLoader(dataset, [loading.Batch([0], (0,))], loading.Config(**options), CPU).workers)

    assert workers(Whole()) == workers(Subset(Subset(Whole(), range(9)), range(3))) == 0
    assert workers(TensorDataset(torch.zeros(3))) == 0
    assert workers(OneByOne()) == workers(Subset(OneByOne(), range(3))) == CORES - 1
    assert (workers(Whole(), workers=2), workers(OneByOne(), workers=0)) == (2, 0)
    monkeypatch.delattr(Whole, "in_memory")
    assert workers(Whole()) == CORES - 1, "__getitems__() alone does not say that it is in memory"
    monkeypatch.setattr(loading, "MOST_WORKERS", 3)
    assert workers(OneByOne()) == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert workers(OneByOne()) == 0


class OfEpoch(OneByOne):
    """Samples that say for which epoch they were loaded."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.epoch)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_is_told_the_epoch_and_its_samples_are_collated(workers: int, loading: ModuleType) -> None:
    dataset: Dataset[Any] = ConcatDataset([OneByOne(), Subset(OfEpoch(), range(9))])
    sampler = loading.ResumableDistributedSampler(73, 73, loading.DistEnv(0, 0, 1, 1), 0)
    loader = loading.PrefetchLoader(dataset, sampler, loading.Config(workers=workers), CPU, sorted)
    for epoch in (0, 3, 1):
        sampler.set_epoch(epoch)
        assert [*loader] == [sorted([*range(64), *9 * [epoch]])]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_evaluation_does_not_depend_on_the_epoch_of_a_dataset_that_it_shares(
    workers: int, loading: ModuleType
) -> None:
    """So a stop before it changes nothing, nor does the number of workers."""
    shared = OfEpoch()
    sampler = loading.ResumableDistributedSampler(4, 2, loading.DistEnv(0, 0, 1, 1), 0)
    config = loading.Config(workers=workers)
    training = loading.PrefetchLoader(Subset(shared, range(4)), sampler, config, CPU)
    evaluation = loading.PrefetchLoader(Subset(shared, range(4, 6)), [loading.Batch([0, 1], (0,))], config, CPU)
    sampler.set_epoch(3)
    batches = iter(training)
    seen = [next(batches), *evaluation, next(batches), *evaluation]
    assert [batch.tolist() for batch in seen] == [[3, 3], [0, 0], [3, 3], [0, 0]]


class Drawing(OneByOne):
    """Samples that are drawn when an epoch begins, from all generators."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []
        self.drawn: list[float] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.drawn = [random.random(), np.random.random(), torch.rand(()).item()]

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([*self.drawn, len(self.told)])


def test_what_a_dataset_draws_for_an_epoch_depends_on_it_alone(loading: ModuleType) -> None:
    """Not on the worker, nor on an evaluation in the epoch, nor on what was drawn before."""

    def drawn(workers: int, epoch: int, own_seed: int) -> list[list[float]]:
        torch.manual_seed(own_seed)
        own, config = Drawing(), loading.Config(workers=workers)
        sampler = loading.ResumableDistributedSampler(4, 2, loading.DistEnv(0, 0, 1, 1), 0)
        sampler.set_epoch(epoch)
        batches = iter(loading.PrefetchLoader(own, sampler, config, CPU))
        evaluation = loading.PrefetchLoader(Drawing(), [loading.Batch([0], (0,))], config, CPU)
        before = torch.get_rng_state()
        found = [next(batches)[0], *evaluation, next(batches)[0]]
        assert workers or torch.equal(torch.get_rng_state(), before)
        assert found[0].tolist() == found[2].tolist(), "told once"
        return [each.flatten().tolist()[:3] for each in found]

    first = drawn(0, 3, own_seed=1)
    assert drawn(1, 3, own_seed=2) == first
    assert drawn(0, 2, own_seed=1)[0] != first[0]


def test_an_error_in_collate_names_its_line(loading: ModuleType) -> None:
    loader = loading.PrefetchLoader(OneByOne(), [loading.Batch([3, 4], (0,))], loading.Config(workers=0), CPU, "x".join)
    with pytest.raises(
        RuntimeError, match=r"one of samples 3, 4 cannot be loaded: TypeError sequence item 0: .* \(at "
    ):
        next(iter(loader))


def test_a_whole_batch_that_is_a_list_is_refused(loading: ModuleType) -> None:
    pairs = Whole(lambda indices: [torch.tensor(indices), torch.tensor(indices)])
    with pytest.raises(loading.UserError, match="a list of 2 for 3 indices: return a tuple or dict"):
        [*loading.PrefetchLoader(pairs, [loading.Batch([1, 2, 3], (0,))], loading.Config(), CPU)]


def test_collate_is_refused_where_it_would_get_no_samples(loading: ModuleType) -> None:
    loader = loading.PrefetchLoader(Whole(torch.tensor), [loading.Batch([1], (0,))], loading.Config(), CPU, sorted)
    with pytest.raises(loading.UserError, match=r"__getitems__\(\) of Whole returns whole batches, so Data\("):
        next(iter(loader))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of torch.cuda and of tensors, in this order; the number is the length of the tensor."""
    asked: list[str] = []
    streams = ["training"]

    @contextmanager
    def using(name: str) -> Iterator[None]:
        streams.append(name)
        yield
        streams.pop()

    def ask(what: str, tensor: torch.Tensor) -> torch.Tensor:
        asked.append(f"{what} {len(tensor)}")
        return tensor

    class Stream(str):
        def record_event(self) -> str:
            return asked[-1]

        def wait_event(self, event: str) -> None:
            asked.append(f"{self} waits for {event}")

        wait_stream = wait_event

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies"))
    monkeypatch.setattr(torch.cuda, "stream", using)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(streams[-1]))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: ask("pin", tensor))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *how, **further: ask(f"{streams[-1]}: copy", tensor))
    return asked


def test_a_gpu_copies_ahead_in_a_stream_of_its_own_for_which_the_step_waits(
    loading: ModuleType, asked: list[str]
) -> None:
    """The copies wait for the steps before, whose memory they may take. What cannot be pinned is copied without."""
    [*loading.PrefetchLoader(Whole(), [loading.Batch([1, 2], (0,))], loading.Config(workers=1), GPU)]
    waits = ["copies waits for training", "training waits for copies: copy 2"]
    assert asked == [waits[0], "pin 2", "copies: copy 2", waits[1]]
    asked.clear()
    elsewhere = Whole(lambda indices: (torch.ones(3).to_sparse(), torch.ones(4, device="meta")))
    [*loading.PrefetchLoader(elsewhere, [loading.Batch([1, 2], (0,))], loading.Config(), GPU)]
    assert asked == ["training: copy 3", "training: copy 4"]
    asked.clear()
    batches = importlib.import_module("ddp_project.runtime.collation")
    batches.PinnedBatch(elsewhere.make([1, 2])).pin_memory()  # as the loader does it, with workers
    assert asked == []


@pytest.mark.parametrize(("workers", "expected"), ORDERS)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_workers_let_a_copy_begin_before_a_step_that_the_cpu_waits_for(
    workers: int, expected: list[str], loading: ModuleType, asked: list[str]
) -> None:
    """No step waits for a copy other than its own."""
    sampler = [loading.Batch([*range(size)], (0,)) for size in (1, 2, 3)]
    for batch in loading.PrefetchLoader(OneByOne(), sampler, loading.Config(workers=workers), GPU):
        asked.append(f"step {len(batch)}")
    told = [each.replace("training waits for copies: copy", "wait").split(": ")[-1] for each in asked]
    assert [each for each in told if each.startswith(("copy", "wait", "step"))] == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("asked")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_at_most_three_batches_are_on_the_device(workers: int, loading: ModuleType) -> None:
    """The one in training, the next one, and the one that is copied; without workers, two."""
    world = importlib.import_module("ddp_project.runtime.launcher").DistEnv(0, 0, 1, 1)
    config = loading.Config(epochs=2, workers=workers, accum_steps=2)
    sampler = importlib.import_module("ddp_project.runtime.sampling").ResumableDistributedSampler(64, 2, world, seed=0)
    progress = loading.Progress(config, sampler)
    loader = loading.TrainingLoader(OneByOne(), sampler, config, GPU)
    to_device = loader._to_device
    copies: list[weakref.ref[torch.Tensor]] = []
    counts = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        copy: torch.Tensor = to_device(tensor).clone()
        copies.append(weakref.ref(copy))
        counts.append(sum(each() is not None for each in copies))
        return copy

    loader._to_device = count
    for step in loader.steps_from(progress):
        for batch in step:
            assert len(batch) == 2
        progress.advance(step.samples, 0.1)
    assert len(counts) == 64
    assert max(counts) == 2 + (workers > 0)


@pytest.mark.parametrize(("loading_takes", "training", "told"), [(0.004, 0.001, True), (0.0, 0.03, False)])
def test_the_log_tells_of_a_loop_that_waits(
    loading_takes: float, training: float, told: bool, loading: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    now = [0.0]  # a clock that only sleep() moves: on a busy machine, another would show what else runs there
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loading, "PERIOD", 0.1)
    caplog.set_level(logging.INFO)
    world = importlib.import_module("ddp_project.runtime.launcher").DistEnv(0, 0, 1, 1)
    config = loading.Config(epochs=1, workers=0, accum_steps=2)
    sampler = importlib.import_module("ddp_project.runtime.sampling").ResumableDistributedSampler(64, 1, world, seed=0)
    progress = loading.Progress(config, sampler)
    for window in loading.TrainingLoader(OneByOne(loading_takes), sampler, config, CPU).steps_from(progress):
        assert len([*window]) == 2
        time.sleep(training)
        progress.advance(window.samples, 0.1)
    shares = re.findall(r"takes (\d+) % of the time", caplog.text)
    assert bool(shares) == told
    assert {*shares} <= {"89"}, "two samples of 4 ms are loaded for a step of 1 ms"
