"""Faults that nobody chose, at any moment and together, are survived: 50 of them, on ranks that are forked."""

import os
import shutil
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from generator.answers.combinations import SelectionError
from generator.chaos import clock
from generator.chaos.disk import Disk, failing_disk
from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import LOST, Need, Surroundings, possible_faults
from generator.chaos.invariants import newest_step
from generator.chaos.job import folder_of_python, launch, loader_workers
from generator.chaos.nemesis import OPTIONS, Nemesis
from tests.chaos import befall, forked
from tests.conftest import Render
from tests.pace import seconds, wait_until

FAULTS = 25  # of each part


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


@pytest.mark.parametrize("seed", [0, 1000])
def test_what_nobody_chose_is_survived(seed: int, needs: list[Need], project: Render, tmp_path: Path) -> None:
    place = project(logging="csv")
    kinds = possible_faults(*needs)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=lambda: seconds(2))
    befall(nemesis, FAULTS, seed)


def test_a_disk_tells_which_of_its_states_have_changed_a_call(needs: list[Need], tmp_path: Path) -> None:
    if Need.DISK not in needs:
        pytest.skip("no disk fails here")
    with failing_disk(tmp_path / "place") as disk:
        for state in ("full", "short"):
            disk.be(state)
            wait_until(lambda: met_by_write(disk) == {state})  # noqa: B023  # an order needs a moment to come
        disk.be("slow")
        assert disk.met() == set()


def met_by_write(disk: Disk) -> set[str]:
    """Write to a disk that may be full, and return which of its states has changed that."""
    with suppress(OSError), open(disk.mount / "file", "wb", buffering=0) as file:
        file.write(b"two")
    return disk.met()


def test_a_clock_that_does_not_jump_is_not_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "nothing.c").write_text("int nothing;")
    monkeypatch.setattr(clock, "SOURCE", tmp_path / "nothing.c")
    with pytest.raises(OSError, match="moves no clock"):
        clock.build_clock(tmp_path)


def test_a_project_is_run_by_the_first_python_that_has_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "ours" / "bin" / "python"))
    for place, code in ((tmp_path / "ours", 1), (tmp_path / "active", 0), (tmp_path / "project" / ".venv", 1)):
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").write_text(f"#!/bin/sh\nexit {code}\n")
        (place / "bin" / "python").chmod(0o755)
    assert folder_of_python(tmp_path / "project") == tmp_path / "active" / "bin"
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SelectionError, match="no Python here has torch"):
        folder_of_python(tmp_path / "project")


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
