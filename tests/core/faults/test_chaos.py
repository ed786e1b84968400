"""Faults that nobody chose, at any moment and together, are survived by forked ranks."""

import os
import warnings
from pathlib import Path

import pytest

from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import LOST, Need, possible_faults
from generator.chaos.invariants import newest_step
from generator.chaos.job import launch, loader_workers
from generator.chaos.nemesis import OPTIONS, Nemesis
from generator.chaos.surroundings import Surroundings, failing_disk
from tests.conftest import Render
from tests.support.chaos import befall, forked, streaming
from tests.support.processes import scaled, wait_until

FAULTS = {"a data set": (3, 0), "a stream": (3, 13)}  # the least number of faults, and the first seed


@pytest.fixture
def needs(tmp_path: Path) -> list[Need]:
    """What there is beside ranks: a disk that fails, if FUSE is to be had; fails where it must be."""
    try:
        with failing_disk(tmp_path / "trial"):
            return [Need.DISK]
    except OSError as error:
        if Path("/dev/fuse").exists() and os.geteuid() == 0:
            raise
        warnings.warn(f"no disk fails: {error}", stacklevel=1)
        return []


@pytest.mark.parametrize("data", FAULTS)
def test_what_nobody_chose_is_survived(data: str, needs: list[Need], own_project: Render, tmp_path: Path) -> None:
    place = own_project(logging="csv")
    kinds = possible_faults(*needs)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=lambda: scaled(2))
    nemesis.options = streaming(place) if data == "a stream" else ()
    befall(nemesis, *FAULTS[data])


def test_a_process_that_loads_data_for_a_spawned_rank_is_killed(project: Render, tmp_path: Path) -> None:
    start, run_dir = launch(project(launcher="spawn", logging="csv"), tmp_path, (), {}), tmp_path / "run"
    job = start(run_dir, 2, [*OPTIONS, "--workers", "1", "--save-every", "5"])
    try:
        wait_until(lambda: newest_step(run_dir) or job.code() is not None, told=job.output)
        workers = {worker.pid for rank in job.ranks() for worker in loader_workers(rank)}
        assert len(job.ranks()) == 2
        assert len(workers) >= 2, "one for each rank, for its training set, and perhaps another to evaluate"
        assert not workers & {rank.pid for rank in job.ranks()}
        KINDS["kill a loader worker"].act(job, Surroundings(), 0.0, 0.1)
        assert wait_until(job.code, told=job.output) == LOST, job.output()
        assert "a process that loads its data has gone" in job.output()
    finally:
        job.end()
