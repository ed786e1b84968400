"""What load_data() must not return is refused in one line; what differs by itself each time is not."""

import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.ranks import error_in, project_module, run_train, start_ranks, train_on_ranks, wrap

FETCHED = 3  # samples of each set that are compared
# Sets of text have another order in each process.
DIGEST = """
from ddp_project.runtime.collation import digest
print(digest([{f"tag {i}" for i in range(9)}, [frozenset("abc")]]))
"""
STREAM = "that cannot be dealt out: return Stream(shards, read) of runtime/ instead"
NOT_THE_SAME = "has not the same samples on all ranks: load_data() must return all"
RETURN = "load_data() must return Data(train=..., evaluation=...), or two datasets, to train and to validate on"
REFUSED = {
    "one set": f"{RETURN}, not Digits",
    "three sets": f"{RETURN}, not 3 things",
    "a stream": f"the training set is a stream (Lines) {STREAM}",
    "a part of a stream": f"the validation set is a stream (Subset) {STREAM}",
    "a stream that deals itself out": f"the training set {NOT_THE_SAME}",
    "a stream whose state needs more": "the training set is a stream (Told), whose state_dict() fails: TypeError",
    "a stream without --steps": "the training set is a stream, whose length is not known: give --steps",
    "shards in another order": f"the training set {NOT_THE_SAME}",
    "other shards": "the number of shards of the training set is 2 on rank 0 and 3 on rank 1",
    "a stream with an order": "an order is for a set with a length: a stream has shuffle in its place",
    "a negative shuffle": "shuffle of the training set must be a number of samples, not -1",
    "shuffle is no number": "shuffle of the training set must be a number of samples, not True",
    "no samples": "the training set is empty",
    "the program ends": "load_data() must return, and calls sys.exit(0)",
    "nothing to evaluate": "the validation set is empty: load_data() must return samples to evaluate on",
    "a negative length": "the training set has no length: ValueError __len__() should return >= 0",
    "a length that raises": "the training set has no length: FileNotFoundError index.json",
    "each rank its own samples": f"the training set {NOT_THE_SAME}",
}


class Digits(Dataset[Any]):
    def __init__(self, digits: Any, kind: str) -> None:
        self.digits, self.kind, self.fetched = digits, kind, 0
        self.own = random.Random()  # without a seed
        self.rank = int(os.environ["RANK"])

    def __len__(self) -> int:
        if self.kind == "a length that raises":
            raise FileNotFoundError("index.json")
        return -3 if self.kind == "a negative length" else len(self.digits)

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        print("fetched", os.getpid(), flush=True)
        image, label = self.digits[index]
        match self.kind:
            case "each rank its own samples":
                return self.digits[(index + self.rank) % len(self.digits)]
            case "all random generators":
                return image + self.own.random() + random.random() + np.random.random() + torch.rand(()), label
            case "rounding of another machine":
                return image * (1 + self.rank * 1e-7), label
            case "an error on one rank" if self.rank and self.fetched == 1:
                raise ValueError("not yet")
        return image, label


class Lines(IterableDataset[Any]):
    """A stream that has a length and samples, too, as streaming libraries have it."""

    def __init__(self, digits: Any) -> None:
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits) // 2

    def __getitem__(self, index: int) -> Any:
        return self.digits[index]

    def __iter__(self) -> Any:
        return iter([])


class Dealing(Lines):
    """A stream of this rank's samples alone, as MosaicML's StreamingDataset is one."""

    def __iter__(self) -> Any:
        return iter([self.digits[i] for i in range(int(os.environ["RANK"]), len(self.digits), 2)])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Told(Dealing):
    def state_dict(self, samples: int = 0, *, from_beginning: bool) -> dict[str, Any]:  # type: ignore[override]
        return {"samples": samples}


def load_what_is_asked_for(config: Any, load: Any, kind: str) -> Any:
    training, validation = load(config)
    if kind == "the program ends":
        sys.exit(0)
    runtime = project_module("runtime")
    rank = int(os.environ["RANK"])
    shards = (
        [3, 4][:: 1 - 2 * rank] if kind == "shards in another order" else [*range(2 + rank * (kind == "other shards"))]
    )
    shuffle = {"a negative shuffle": -1, "shuffle is no number": True}.get(kind, 0)
    stream = runtime.Stream(shards, lambda shard: [training[shard]], shuffle=shuffle)
    wrong = {
        **dict.fromkeys(["a stream without --steps", "shards in another order", "other shards"], (stream, validation)),
        **dict.fromkeys(["a negative shuffle", "shuffle is no number"], (stream, validation)),
        "a stream with an order": runtime.Data(stream, validation, order=lambda size, seed, epoch: [0]),
        "one set": training,
        "three sets": [training, validation, validation],
        "a stream": (Lines(training), validation),
        "a part of a stream": (training, Subset(Dealing(validation), range(9))),
        "a stream that deals itself out": (Dealing(training), validation),
        "a stream whose state needs more": (Told(training), validation),
        "no samples": (Subset(training, []), validation),
        "nothing to evaluate": (training, Subset(validation, [])),
    }
    return wrong[kind] if kind in wrong else (Digits(training, kind), Digits(validation, kind))


def test_sets_of_text_are_the_same_in_each_process(project: Render) -> None:
    command, seeds = [sys.executable, "-c", DIGEST], ("1", "2", "3")
    printed = {output_of(command, project(), {**os.environ, "PYTHONHASHSEED": seed}) for seed in seeds}
    assert len(printed) == 1


def train_on_it() -> None:
    wrap("data.load_data", lambda load: lambda config: load_what_is_asked_for(config, load, os.environ["KIND"]))
    run_train()


@pytest.mark.parametrize("kind", REFUSED)
def test_data_that_cannot_be_dealt_out_is_refused(kind: str, project: Render, tmp_path: Path) -> None:
    printed = train_on_ranks(project(), tmp_path / "run", code=2, entry=train_on_it, env={"KIND": kind}, timeout=60)
    prefix = "the ranks must be the same" if kind == "other shards" else "data.py"
    assert f"{prefix}: {REFUSED[kind]}" in error_in(printed)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["all random generators", "rounding of another machine", "an error on one rank"])
def test_other_data_is_accepted(kind: str, project: Render, tmp_path: Path) -> None:
    options = ("--max-steps", "1", "--workers", "0")
    train_on_ranks(project(), tmp_path / "run", *options, entry=train_on_it, env={"KIND": kind})


def freeze_one_rank() -> None:
    """Be a rank of which the second one is frozen in load_data()."""

    def make(load: Any) -> Any:
        def load_or_freeze(config: Any) -> Any:
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGSTOP)
            return load(config)

        return load_or_freeze

    wrap("data.load_data", make)
    run_train()


def test_a_rank_that_is_frozen_in_load_data_is_named_by_the_others(project: Render, tmp_path: Path) -> None:
    one, other = start_ranks(project(), tmp_path / "run", "--timeout", "4", entry=freeze_one_rank)
    try:
        assert "error: rank 1 is silent: it was " in error_in([one.ends_with(69, timeout=60)])
    finally:
        other.kill()


@pytest.mark.parametrize(("processes", "workers"), [(1, 0), (2, 0), (2, 1)])
def test_few_samples_are_compared(processes: int, workers: int, project: Render, tmp_path: Path) -> None:
    """None by a rank alone; and none by a rank that lets others load, for what it opens they would share."""
    options = ("--global-batch-size", "100000", "--workers", str(workers))  # refused after the comparison
    run: dict[str, Any] = {"processes": processes, "entry": train_on_it, "env": {"KIND": "as they are"}}
    for rank in start_ranks(project(), tmp_path / "run", *options, **run):
        fetched_by = re.findall(r"^fetched (\d+)$", rank.ends_with(2, 60), re.MULTILINE)
        assert len(fetched_by) == (2 * FETCHED if processes > 1 else 0)
        assert not workers or str(rank.process.pid) not in fetched_by


@pytest.mark.parametrize(("now", "code"), [(500, 2), (700, 2), (600, 0)])
def test_a_set_of_another_length_is_refused(now: int, code: int, project: Render, tmp_path: Path) -> None:
    """At the end of an epoch, it is not."""

    def train_on(samples: int, steps: int, *resume: str, code: int = 0) -> list[str]:
        run: dict[str, Any] = {"processes": 1, "code": code, "entry": train_on_some, "env": {"SAMPLES": str(samples)}}
        return train_on_ranks(project(), tmp_path / "run", *resume, "--max-steps", str(steps), **run)

    train_on(600, 5)
    printed = train_on(now, 6, "--resume", code=code)
    if code:
        expected = f"error: data.py: the training set has {now} samples and had 600 when epoch 1 began: "
        assert expected in error_in(printed)
    else:
        train_on(600, 9, "--resume")
        train_on(500, 12, "--resume")


def train_on_some() -> None:
    samples = range(int(os.environ["SAMPLES"]))
    wrap("data.load_data", lambda load: lambda config: (Subset(load(config)[0], samples), load(config)[1]))
    run_train()


def prepare_on_two_nodes() -> None:
    """Be one of three ranks, of which the last is alone on its node. prepare() takes longer than --timeout."""
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_RANK"] = str(rank % 2)
    folder = Path(os.environ["FOLDER"])

    def prepare(config: Any) -> object:
        if rank == 2 and "FAILS" in os.environ:
            raise FileNotFoundError(2, "nothing to download", "x.tar")
        time.sleep(6)
        (folder / str(rank)).touch()
        return lambda: "what cannot be pickled"

    def make(load: Any) -> Any:
        def load_prepared(config: Any) -> Any:
            assert sorted(os.listdir(folder)) == ["0", "2"]
            return load(config)

        return load_prepared

    vars(project_module("data"))["prepare"] = prepare
    wrap("data.load_data", make)
    run_train()


def test_data_is_prepared_on_each_node_however_long_it_takes(project: Render, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    run: Any = {"processes": 3, "entry": prepare_on_two_nodes, "env": {"FOLDER": str(folder)}}
    options = ("--timeout", "4", "--max-steps", "1", "--global-batch-size", "96")
    for rank in start_ranks(project(), tmp_path / "run", *options, **run):
        rank.ends_with(0, timeout=60)
    run["env"] |= {"FAILS": "yes"}
    ranks = start_ranks(project(), tmp_path / "other", *options, **run)
    printed = [rank.ends_with(2, timeout=60) for rank in ranks]
    assert error_in(printed) == "error: rank 2: [Errno 2] nothing to download: 'x.tar'"
