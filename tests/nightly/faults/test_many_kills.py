"""Hundreds of kills lose no more than one: an interval between two checkpoints, and never a checkpoint."""

from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.core.faults.test_kills import assert_kills_lose_one_interval
from tests.core.faults.test_sharded_kills import assert_sharded_kills_lose_one_interval
from tests.support.training import EXACTLY, HAS_GPU


def test_many_kills_lose_no_more_than_one(project: Render, tmp_path: Path, measured: Measured) -> None:
    assert_kills_lose_one_interval(200, project(), tmp_path, measured)


def test_many_kills_of_a_sharded_run_lose_no_more_than_one(project: Render, tmp_path: Path, measured: Measured) -> None:
    assert_sharded_kills_lose_one_interval(200, project(parallel="fsdp"), tmp_path, measured)


@pytest.mark.gpu
def test_kills_beside_background_saves_lose_no_more(project: Render, tmp_path: Path, measured: Measured) -> None:
    """Than what the disk did not have yet. On a GPU, each start takes long."""
    kills, options = (3, EXACTLY) if HAS_GPU else (40, ())
    assert_kills_lose_one_interval(kills, project(), tmp_path, measured, "--async-saves", *options)
