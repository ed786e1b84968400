"""A rank or a launcher that dies takes the rest of the run along, at once."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests import mpi
from tests.conftest import Measured, Render
from tests.nightly.test_signals import ranks_of, running
from tests.pace import seconds

NEEDS_OPENMPI = pytest.mark.skipif(not mpi.openmpi_mpirun(), reason="there is no Open MPI")
NEEDS_MPICH = pytest.mark.skipif(not mpi.mpich_mpirun(), reason="there is no MPICH")
LAUNCHERS = [
    "torchrun",
    "launch",
    "spawn",
    pytest.param("mpirun", marks=NEEDS_OPENMPI),
    pytest.param("mpich", marks=NEEDS_MPICH),
]


def seconds_until_gone(pids: list[int], limit: float) -> float:
    """Wait until none of the processes is there, and return how long that took. Fails after the limit (seconds)."""
    started = time.perf_counter()
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.perf_counter() < started + limit, f"still there: {left}"
        time.sleep(0.005)
    return time.perf_counter() - started


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_launcher_takes_its_ranks_along(
    launcher: str, project: Render, tmp_path: Path, measured: Measured
) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="mpirun" if launcher == "mpich" else launcher), run_dir, launcher) as process:
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        assert len(ranks) == 2
        process.kill()
        measured("a killed launcher", launcher, seconds_until_gone(ranks, limit=2))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_ends_the_job(
    launcher: str, victim: int, project: Render, tmp_path: Path, measured: Measured
) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="mpirun" if launcher == "mpich" else launcher), run_dir, launcher) as process:
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        assert len(ranks) == 2
        started = time.perf_counter()
        os.kill(ranks[victim], signal.SIGKILL)
        assert process.wait(timeout=seconds(5)) != 0
        seconds_until_gone(ranks, limit=max(0.0, started + 5 - time.perf_counter()))
        measured("a killed rank", f"{launcher}, rank {victim}", time.perf_counter() - started)
