"""Ranks that are killed while they write their shards lose one interval at most, and never a checkpoint."""

import hashlib
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.core.faults.test_kills import kill_again_and_again
from tests.support.processes import wait_until
from tests.support.ranks import Rank, any_ended, assert_same_state, kill_after
from tests.support.training import checkpoint, whole_checkpoint


def folders(run_dir: Path) -> set[str]:
    return {each.name for each in (run_dir / "checkpoints").glob("step-*") if each.is_dir()}


def kill_while_writing(ranks: list[Rank], run_dir: Path, delay: float) -> bool:
    """Kill all ranks some time after a new folder of shards is there. Returns False if they ended before."""
    before = folders(run_dir)  # also what the kill before has left
    wait_until(lambda: any_ended(ranks) or not folders(run_dir) <= before, pause=0)
    return kill_after(ranks, run_dir, 0, delay)


def assert_all_are_whole(run_dir: Path) -> int:
    """Compare the shards of every checkpoint with the digests that it names, and return the step of last.pt."""
    for path in (run_dir / "checkpoints").glob("*.pt"):
        shards = checkpoint(run_dir, path.name)["shards"]
        files = {each.name: each for each in path.with_name(shards["folder"]).iterdir()}
        assert {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()} == shards["files"]
    last: int = checkpoint(run_dir)["progress"]["step"]
    return last


@pytest.mark.parametrize("further", [(), ("--async-saves",)])
def test_a_killed_run_with_shards_loses_one_interval_at_most(
    further: tuple[str, ...], project: Render, tmp_path: Path, measured: Measured
) -> None:
    assert_sharded_kills_lose_one_interval(6, project(parallel="fsdp"), tmp_path, measured, *further)


def assert_sharded_kills_lose_one_interval(
    kills: int, project: Path, folder: Path, measured: Measured, *further: str
) -> None:
    run_dir, in_a_save = folder / "run", (kill_while_writing, 0.02, assert_all_are_whole)
    while_writing, lost = kill_again_and_again(kills, project, folder, in_a_save, *further)
    assert_same_state(whole_checkpoint(run_dir), whole_checkpoint(folder / "whole"))
    named = {checkpoint(run_dir, path.name)["shards"]["folder"] for path in (run_dir / "checkpoints").glob("*.pt")}
    assert folders(run_dir) == named, "what kills have left is deleted"
    how = " ".join([f"{kills} kills of sharded runs", *further])
    measured("kills", f"{how}, {while_writing} of them while shards are written: intervals lost at most", lost)
