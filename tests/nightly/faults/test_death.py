"""A rank or a launcher that dies takes the rest of the run along, at once."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.support.processes import is_running, wait_until
from tests.support.schedulers.mpi import NEEDS_MPICH, NEEDS_OPENMPI
from tests.support.training import ranks_of, running

# The launchers, and the rank that is killed; None: the launcher itself.
KILLS = {"torchrun": (None, 0, 1), "launch": (None,), "spawn": (None, 1), "mpirun": (None, 0), "mpich": (None, 1)}
MARKS = {"mpirun": NEEDS_OPENMPI, "mpich": NEEDS_MPICH}


def seconds_until_gone(pids: list[int], limit: float) -> float:
    """Wait until none of the processes is there, and return how long that took. Fails after the limit (seconds)."""
    started = time.perf_counter()
    wait_until(lambda: not any(map(is_running, pids)), limit, lambda: [*filter(is_running, pids)], pause=0.005)
    return time.perf_counter() - started


@pytest.mark.parametrize(
    ("launcher", "victim"),
    [pytest.param(name, victim, marks=MARKS.get(name, ())) for name, victims in KILLS.items() for victim in victims],
)
def test_a_killed_launcher_or_rank_ends_all(
    launcher: str, victim: int | None, project: Render, tmp_path: Path, measured: Measured
) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="mpirun" if launcher == "mpich" else launcher), run_dir, launcher) as process:
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        assert len(ranks) == 2
        if victim is None:
            process.kill()
            measured("a killed launcher", launcher, seconds_until_gone(ranks, limit=2))
        else:
            os.kill(ranks[victim], signal.SIGKILL)
            took = seconds_until_gone([process.pid, *ranks], limit=5)
            assert process.wait() != 0
            measured("a killed rank", f"{launcher}, rank {victim}", took)
