"""What clusters do to a run: killed while it saves, stopped by a signal, its checkpoint damaged, it ends as it should.

These tests train your model on your data. Run them again when you have changed the loop, or what a checkpoint holds.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from conftest import OnRanks
from test_exact import OWN, differences, saved, train_some
from torch import multiprocessing as mp

import train

STEPS = 6
SAVING = replace(OWN, max_steps=STEPS, save_every=2, log_every=1, keep=2, eval_every=STEPS)
REPLACED = 3  # files that are replaced in each save: the manifest, the numbered file and last.pt


def interrupted(function: Callable[..., Any], number: int, signum: int) -> Callable[..., Any]:
    """Return the function, which at one of its calls sends a signal to this rank first."""
    calls = iter(range(number))

    def call(*arguments: Any) -> Any:
        if next(calls, None) == number - 1:
            os.kill(os.getpid(), signum)
        return function(*arguments)

    return call


def train_until_killed(config: Any, replaced: int) -> None:
    """Train, until rank 0 is killed where it replaces this one of the files beside the checkpoints, counted from 1."""
    replacing, counted = os.replace, interrupted(os.replace, replaced, signal.SIGKILL)

    def replace_file(old: Path, new: Path) -> None:
        (counted if new.parent.name == "checkpoints" else replacing)(old, new)

    with mock.patch("os.replace", replace_file):
        train_some(config)


def train_until_stopped(config: Any, step: int) -> None:
    """Train, until a signal comes to rank 1 at this step."""
    number = step if dist.get_rank() == 1 else 0
    with mock.patch.object(train, "train_step", interrupted(train.train_step, number, signal.SIGTERM)):
        train_some(config)


def assert_goes_on(run_dir: Path, whole: Path, on_ranks: OnRanks) -> None:
    """Resume the run, and compare its end with that of a whole one, bit for bit."""
    on_ranks(2, train_some, replace(SAVING, run_dir=run_dir, resume="newest"))
    assert [*differences(saved(run_dir), saved(whole))] == []


@pytest.fixture
def whole(on_ranks: OnRanks, tmp_path: Path) -> Path:
    """The run directory of a run that nothing disturbed."""
    on_ranks(2, train_some, replace(SAVING, run_dir=tmp_path / "whole"))
    return tmp_path / "whole"


def test_a_run_that_is_killed_while_it_saves_goes_on(on_ranks: OnRanks, whole: Path, tmp_path: Path) -> None:
    for replaced in range(REPLACED + 1, 2 * REPLACED + 1):  # everywhere in the second save
        run_dir = tmp_path / f"killed-{replaced}"
        with pytest.raises((mp.ProcessExitedException, mp.ProcessRaisedException)):
            on_ranks(2, train_until_killed, replace(SAVING, run_dir=run_dir), replaced)
        assert saved(run_dir)["progress"]["step"] in (2, 4), "no more than one save is lost"
        assert_goes_on(run_dir, whole, on_ranks)


def test_a_signal_to_one_rank_stops_all_after_the_same_step(on_ranks: OnRanks, whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "stopped"
    on_ranks(2, train_until_stopped, replace(SAVING, run_dir=run_dir, save_every=0), 3)
    assert saved(run_dir)["progress"]["step"] == 3
    assert_goes_on(run_dir, whole, on_ranks)


def test_a_signal_in_the_last_step_lets_the_run_end(on_ranks: OnRanks, whole: Path, tmp_path: Path) -> None:
    on_ranks(2, train_until_stopped, replace(SAVING, run_dir=tmp_path / "last"), STEPS)
    assert [*differences(saved(tmp_path / "last")["model"], saved(whole)["model"])] == []
    assert (tmp_path / "last" / "checkpoints" / "best.pt").is_file()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(on_ranks: OnRanks, whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "damaged"
    on_ranks(2, train_some, replace(SAVING, run_dir=run_dir, max_steps=4))
    last = run_dir / "checkpoints" / "last.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert_goes_on(run_dir, whole, on_ranks)
    assert f"{last} is damaged" in (run_dir / "train.log").read_text()
