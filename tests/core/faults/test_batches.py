"""A batch that cannot be made, sent or received ends the run in one line with the true cause, and never hangs."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.random  # here, or each worker imports it after a fork, which can fail
import psutil
import pytest
import torch
from torch.utils.data import Dataset

from tests.conftest import Package, Render, of_package
from tests.support.chaos import run_in_session
from tests.support.processes import scaled, wait_until
from tests.support.ranks import error_in, start_ranks, wrap

CPU = torch.device("cpu")
BIG = 1 << 20  # floats, of which each sample has as many
TIMEOUT = 10  # seconds, which is also the time in which ranks must meet
loading = of_package("runtime.data_loading")


class OneByOne(Dataset[Any]):
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make()


class Whole(OneByOne):
    """Batches that hold tensors and, beside them, what a function returns."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.ones(len(indices)), self.make()


def loaded(loading: ModuleType, dataset: Any, workers: int, *batches: list[int]) -> Iterator[Any]:
    """Load these batches, or one of samples 2 and 3."""
    sampler = [loading.Batch(samples, (number,)) for number, samples in enumerate(batches or [[2, 3]])]
    return iter(loading.PrefetchLoader(dataset, sampler, loading.Config(workers=workers), CPU))


def refused(loading: ModuleType, dataset: Any, workers: int) -> str:
    with pytest.raises(loading.UserError) as error:
        [*loaded(loading, dataset, workers, [2, 3], [4, 5])]
    assert error.value.should_report, "no other rank knows"
    return str(error.value)


def with_graph() -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * 2


UNSENDABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "a lambda": (lambda: lambda: 0, "pickle .*lambda.*; leave out what cannot be pickled, or give --workers 0"),
    "a lock": (threading.Lock, "cannot pickle '_thread.lock' object; leave out what"),
    "a generator": (lambda: (i for i in range(3)), "cannot pickle 'generator' object; leave out what"),
    "a tensor with a graph": (with_graph, r"a tensor that needs gradients needs \.detach\(\)"),
}


@pytest.mark.parametrize("what", UNSENDABLE)
def test_what_a_worker_cannot_send_comes_as_an_error(what: str, loading: ModuleType) -> None:
    make, said = UNSENDABLE[what]
    printed = refused(loading, Whole(make), workers=1)
    assert printed.startswith("data.py: the batch of samples 2, 3 cannot leave its worker process: ")
    assert re.search(said, printed), printed


def with_full_memory() -> torch.Tensor:
    """A sample of a worker that has a /dev/shm of its own, which is too small for it."""
    if ctypes.CDLL(None).unshare(0x20000):  # CLONE_NEWNS
        pytest.skip("namespaces of mounts need root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/dev/shm"], check=True)
    return torch.ones(BIG)


def with_few_files() -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return torch.ones(2)


@pytest.mark.parametrize("dataset", [OneByOne, Whole])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (with_full_memory, "/dev/shm is full: give it more, as docker run --shm-size=8g does, or give --workers 0"),
        (with_few_files, "ulimit -n 65536 lets a process open more files, or give --workers 0"),
    ],
)
def test_want_in_a_worker_is_named(make: Callable[[], Any], said: str, dataset: type, loading: ModuleType) -> None:
    assert refused(loading, dataset(make), workers=1).endswith(f"; {said}")


def test_want_of_files_for_the_connection_to_the_rank_is_named_once(
    loading: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch waits to be handed on when its worker may open no more files."""
    made: list[int] = []

    def make() -> torch.Tensor:
        made.append(len(made))
        if len(made) == 5:  # of the third batch
            time.sleep(scaled(0.3))  # until the second one waits
            unused = set(range(1000)).difference(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(unused), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return torch.ones(2)

    batches = loaded(loading, OneByOne(make), 1, [2, 3], [4, 5], [6, 7])
    next(batches)
    time.sleep(scaled(1))
    with pytest.raises(loading.UserError, match="ulimit -n 65536") as error:
        next(batches)
    assert error.value.should_report, "no other rank knows"
    assert len(capfd.readouterr().err) < 1000


class Foreign(Exception):
    """No error of the project."""


# What cannot be one batch though the samples are alike, by what is said of it.
ALIKE: dict[str, tuple[Callable[[], Any], str]] = {
    "a flipped image": (lambda: np.ones((2, 2), np.float32)[:, ::-1], r"a flipped array needs \.copy\(\)"),
    "a number beyond int64": (lambda: 2**64, "numbers must fit into int64"),
    "None": (lambda: None, "found <class 'NoneType'>"),
    "objects": (lambda: {"a": Foreign()}, r"is \{a: Foreign\}: .* found <class '.*Foreign'>"),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", ALIKE)
def test_samples_that_are_alike_are_not_told_to_be(what: str, workers: int, loading: ModuleType) -> None:
    make, said = ALIKE[what]
    printed = refused(loading, OneByOne(make), workers)
    assert printed.startswith("data.py: sample 2 is ")
    assert re.search(said, printed), printed
    assert "make them alike" not in printed


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [OneByOne, Whole])
def test_errors_that_are_no_samples_fault_stay_what_they_are(
    workers: int, dataset: type, loading: ModuleType, package: Package
) -> None:
    class Broken(loading.UserError):  # type: ignore[misc, name-defined]
        code = 65

        def __init__(self, path: str, reason: str) -> None:
            super().__init__(f"{path} is broken: {reason}")

    def fail(error: Exception) -> None:
        raise error

    def be_killed() -> None:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGBUS)

    with pytest.raises(MemoryError):
        [*loaded(loading, dataset(lambda: fail(MemoryError())), workers)]
    with pytest.raises(loading.UserError, match=r"^a\.png is broken: empty$") as error:
        [*loaded(loading, dataset(lambda: fail(Broken("a.png", "empty"))), workers)]
    assert error.value.code == 65
    if workers:
        exits = package("runtime.exits")
        with pytest.raises(RuntimeError, match="killed by signal: SIGBUS") as killed:
            [*loaded(loading, dataset(be_killed), workers)]
        with pytest.raises(exits.LoaderLost, match="/dev/shm is full"):
            exits.raise_for_user(killed.value, 1)


class Hanging(Dataset[Any]):
    """The digits, one by one, of which one never comes on the last rank."""

    def __init__(self, digits: Any) -> None:
        self.digits = digits
        self.loaded = 0

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        if self.loaded == 100 and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            threading.Event().wait()
        return self.digits[index]


def freeze(rank: int, worker: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def train_what_hangs() -> None:
    if "load_data" in os.environ["HANGS"]:
        wrap("data.load_data", lambda load: lambda config: threading.Event().wait())
    elif "worker" in os.environ["HANGS"]:
        wrap("runtime.data_loading.outlive_signals", lambda outlive: freeze)
    else:
        wrap("data.load_data", lambda load: lambda config: tuple(map(Hanging, load(config))))
    run_in_session()


@pytest.mark.parametrize(("what", "workers", "size"), [("a sample", 0, 2), ("a sample", 1, 2), ("load_data", 0, 1)])
def test_what_never_comes_ends_a_run(what: str, workers: int, size: int, project: Render, tmp_path: Path) -> None:
    options = ("--workers", str(workers), "--timeout", str(TIMEOUT), "--epochs", "1000")
    run = {"processes": size, "env": {"HANGS": what}, "entry": train_what_hangs}
    *first, last = start_ranks(project(), tmp_path / "run", *options, **run)  # type: ignore[arg-type]
    error = error_in([last.ends_with(69, timeout=30)])
    place = r"from the worker with process ID \d+" if workers else ""
    waited = "load_data\\(\\) of data.py" if what == "load_data" else rf"samples \d+, \d+, .*{place}"
    assert re.match(rf"error: rank {size - 1}: it has waited {TIMEOUT} s for {waited}, after step", error), error
    for rank in first:
        assert "error: rank 1 has ended: LoaderLost it has waited" in rank.ends_with(69, timeout=30)


def test_a_worker_that_hangs_as_it_starts_does_not_outlive_its_rank(project: Render, tmp_path: Path) -> None:
    """The kernel ends with their rank those that have begun; this one has not asked it to."""
    options, hangs = ("--workers", "1", "--timeout", str(TIMEOUT)), {"HANGS": "a worker"}
    run = {"processes": 1, "env": hangs, "entry": train_what_hangs}
    [rank] = start_ranks(project(), tmp_path / "run", *options, **run)  # type: ignore[arg-type]
    itself = psutil.Process(rank.process.pid)
    wait_until(
        lambda: any(each.status() == psutil.STATUS_STOPPED for each in itself.children()), told=rank.output.read_text
    )
    workers = itself.children()
    assert f"it has waited {TIMEOUT} s for samples" in rank.ends_with(69, timeout=30)
    wait_until(lambda: not any(each.is_running() for each in workers), limit=10)


@pytest.mark.parametrize("pause", [0, 2])
def test_a_rank_whose_worker_is_frozen_heeds_a_stop(pause: int, project: Render, tmp_path: Path) -> None:
    """Within --timeout if it waits for a batch, else after its step: at its end it does not wait for the worker."""
    options = ("--workers", "1", "--timeout", str(TIMEOUT), "--epochs", "1000", "--save-every", "1")
    [rank] = start_ranks(project(), tmp_path / "run", *options, processes=1, entry=run_in_session)
    wait_until(lambda: (tmp_path / "run" / "checkpoints" / "last.pt").exists(), told=rank.output.read_text)
    [worker, *_] = psutil.Process(rank.process.pid).children()
    worker.suspend()
    time.sleep(pause)  # in which it takes the steps for which it has batches
    rank.process.terminate()
    rank.process.join(scaled(30))
    assert rank.process.exitcode in ((69,) if pause else (69, 75)), rank.output.read_text()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, limit=10)


def test_what_watches_a_rank_holds_no_loader(loading: ModuleType) -> None:
    """A thread that lets go of the last reference as Python ends can abort the process, after all is done."""
    told: list[Callable[[], str]] = []  # as that thread has it

    def make() -> float:
        told.append(loading.OWN_WAIT.what)
        return len(told[0]())

    loader = loading.PrefetchLoader(OneByOne(make), [loading.Batch([2, 3], (0,))], loading.Config(workers=0), CPU)
    assert [batch.tolist() for batch in loader] == [[len("samples 2, 3")] * 2]
    held = weakref.ref(loader)
    del loader
    assert held() is None
