"""What is around a run of the nemesis: data that obeys, shared memory of its own, a quota of CPU time."""

import math
import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.multiprocessing  # by which ForkingPickler takes tensors
from torch.utils.data import default_collate

from generator.chaos import faulty_dataset
from generator.chaos.data import Data, faulty_data
from generator.chaos.memory import SharedMemory
from generator.chaos.quota import PERIOD, Quota, parent_group


class Sample(NamedTuple):
    """A sample with names."""

    image: torch.Tensor
    label: int


class Numbers:
    """A dataset of its index."""

    def __getitem__(self, index: int) -> int:
        """Return the index."""
        return index


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    """Data that obeys in this process."""
    data = faulty_data(tmp_path / "inside")
    monkeypatch.setenv(faulty_dataset.ORDERS, str(data.orders))
    return data


@pytest.mark.parametrize(
    ("loaded", "is_batch"),
    [
        ((torch.ones(2), 1), True),
        ({"image": torch.ones(2)}, True),
        (torch.ones(2), True),
        ((torch.ones(2), 1), False),
        ({"image": [torch.ones(2)], "label": 1}, False),
        (Sample(torch.ones(2), 1), False),
        ([(torch.ones(2), 1)], False),
        ({"words": torch.ones(2, dtype=torch.long)}, False),
        (3, False),
    ],
)
def test_what_cannot_be_sent_cannot_be_pickled(loaded: Any, is_batch: bool) -> None:
    ForkingPickler.dumps(loaded)
    with pytest.raises(Exception, match=r"pickle|requires_grad"):
        ForkingPickler.dumps(faulty_dataset.unsendable(loaded, is_batch=is_batch))


def test_samples_that_cannot_be_sent_can_be_one_batch() -> None:
    sample = Sample(torch.ones(2), 1)
    batch = default_collate([faulty_dataset.unsendable(sample, is_batch=False) for _ in range(3)])
    assert batch.image.shape == (3, 2)
    assert batch.image.requires_grad


def test_data_obeys_in_the_processes_that_are_named(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_dataset, "unsendable", lambda loaded, is_batch: -loaded)
    dataset, load = Numbers(), faulty_dataset.obeying(Numbers.__getitem__, of_many=False)
    assert load(dataset, 3) == 3
    data.set_state("unsendable", [1, os.getpid() + 1])
    assert load(dataset, 3) == 3
    assert data.states_met() == set()
    data.set_state("unsendable", [1, os.getpid()])
    assert load(dataset, 3) == -3
    assert data.states_met() == {"unsendable"}
    assert data.states_met() == set()


def test_the_shared_memory_of_this_machine_is_never_filled() -> None:
    with pytest.raises(AssertionError, match="has no /dev/shm of its own"):
        SharedMemory().fill(os.getpid())


@pytest.mark.parametrize(
    ("own", "handed_on", "parent"),
    [
        ("3:cpuset:/a\n2:cpu,cpuacct:/job\n0::/\n", None, "cpu/job"),
        ("0::/system.slice/job\n", "system.slice", "system.slice"),
        ("0::/system.slice/job\n", ".", "."),
        ("0::/\n", None, None),
    ],
    ids=["version 1", "version 2", "version 2, further up", "none"],
)
def test_a_control_group_is_made_where_one_can_have_a_quota(
    own: str, handed_on: str | None, parent: str | None, tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(own)
    (tmp_path / "system.slice" / "job").mkdir(parents=True)
    for place in (tmp_path / "system.slice" / "job", tmp_path / "system.slice", tmp_path):
        (place / "cgroup.subtree_control").write_text("memory\n")
    if handed_on:
        (tmp_path / handed_on / "cgroup.subtree_control").write_text("cpu memory\n")
    if parent:
        assert parent_group(tmp_path, tmp_path / "own").resolve() == (tmp_path / parent).resolve()
    else:
        with pytest.raises(OSError, match="no control group hands on CPU time"):
            parent_group(tmp_path, tmp_path / "own")


def test_a_quota_is_written_as_each_version_has_it(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    (tmp_path / "cpu.cfs_quota_us").touch()
    quota.limit(0.5)
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == str(PERIOD // 2)
    quota.lift()
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == "-1"
    (tmp_path / "cpu.max").touch()
    quota.limit(0.5)
    assert (tmp_path / "cpu.max").read_text() == f"{PERIOD // 2} {PERIOD}"
    quota.lift()
    assert math.isinf(float((tmp_path / "cpu.max").read_text().split()[0].replace("max", "inf")))


def test_a_quota_has_an_effect_when_a_process_has_waited(tmp_path: Path) -> None:
    quota = Quota(tmp_path)
    for throttled, met in ((0, set()), (2, {"throttled"}), (2, set())):
        (tmp_path / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled {throttled}\n")
        assert quota.states_met() == met
