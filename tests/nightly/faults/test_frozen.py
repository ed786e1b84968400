"""A rank that is frozen or stuck is found within --timeout, and named with its step and with what it was doing."""

import os
import pickle
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import Measured, Render
from tests.support.processes import is_running, scaled, wait_for_line
from tests.support.schedulers.mpi import NEEDS_OPENMPI
from tests.support.training import FOR_EVER, ON_CPU, ON_GPU, launched, ranks_of, running, wait_for_steps

TIMEOUT = 4  # seconds that a collective waits
FOUND = 3  # seconds more that it may take to see which rank is silent
PLACE = r"(loading data|training|reducing|saving|evaluating), after step \d+"
# Open MPI keeps the store where the ranks met.
FROZEN = [("torchrun", 0), ("torchrun", 1), ("spawn", 1), pytest.param("mpirun", 0, marks=NEEDS_OPENMPI)]


@pytest.mark.parametrize(("launcher", "rank"), FROZEN)
def test_a_frozen_rank_is_named(launcher: str, rank: int, project: Render, tmp_path: Path, measured: Measured) -> None:
    run_dir, output = tmp_path / "run", tmp_path / "output.log"
    with running(project(launcher=launcher), run_dir, launcher, "--timeout", str(TIMEOUT)) as process:
        time.sleep(1)  # until all have told that they train
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        os.kill(ranks[rank], signal.SIGSTOP)
        started = time.perf_counter()
        if launcher != "mpirun":
            assert re.search(PLACE, wait_for_line(output, f"WARNING rank {rank} is silent for", limit=TIMEOUT))
        error = wait_for_line(output, "error: ", limit=TIMEOUT + FOUND)
        took = time.perf_counter() - started
        assert re.search(rf"rank {rank} (is silent: it )?was {PLACE}", error), error
        assert output.read_text().count("error: ") == 1
        os.kill(ranks[rank], signal.SIGKILL)  # spares the launcher's patience with it, which is not measured here
        assert process.wait(timeout=scaled(30)) != 0
        assert not any(map(is_running, ranks))
    measured("frozen", f"{launcher}, rank {rank}, --timeout {TIMEOUT}: named after (seconds)", round(took, 1))


def test_a_launcher_that_must_kill_a_frozen_rank_says_so(project: Render, tmp_path: Path) -> None:
    """torchrun waits half a minute for a rank to stop."""
    run_dir, output = tmp_path / "run", tmp_path / "output.log"
    with launched(project(launcher="torchrun"), run_dir, *FOR_EVER) as process:
        wait_for_steps(run_dir)
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        os.kill(ranks[1], signal.SIGSTOP)
        process.terminate()
        assert process.wait(timeout=scaled(60)) == 128 + signal.SIGTERM
        last = output.read_text().splitlines()[-1]
        assert last.startswith("error: ranks did not stop for half a minute, and were killed")


@pytest.mark.gpu
def test_ranks_that_wait_for_a_frozen_one_record_where(project: Render, tmp_path: Path) -> None:
    """With NCCL, torch does it by itself, if there is a GPU for each of two ranks."""
    run_dir, output, place = tmp_path / "run", tmp_path / "output.log", project(launcher="torchrun")
    device = ON_GPU if torch.cuda.device_count() > 1 else ON_CPU
    with running(place, run_dir, "torchrun", *device, "--timeout", str(TIMEOUT)) as process:
        ranks = [pid for pid in ranks_of(run_dir) if pid != process.pid]
        os.kill(ranks[1], signal.SIGSTOP)
        file = run_dir / "flight-recorder-rank-0"
        assert f"{file}"[:-1] + "*" in wait_for_line(output, "WARNING rank 1 is silent for", limit=TIMEOUT)
        if device == ON_CPU:
            assert f"; {file} has the last collectives of rank 0" in wait_for_line(output, "error: ", TIMEOUT + FOUND)
        process.wait(timeout=scaled(60))
    last = pickle.loads(file.read_bytes())["entries"][-1]
    assert str(place / "train.py") in [frame["filename"] for frame in last["frames"]]
