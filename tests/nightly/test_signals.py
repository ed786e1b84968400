"""A signal makes all ranks write one checkpoint after the same step and leave; --resume goes on from there."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import is_running, scaled, wait_until
from tests.support.schedulers import mpi
from tests.support.schedulers.slurm import Cluster
from tests.support.training import (
    FOR_EVER,
    ON_CPU,
    assert_same_weights,
    checkpoint,
    ranks_of,
    running,
    train,
    wait_for_steps,
)

NEEDS_OPENMPI = pytest.mark.skipif(not mpi.openmpi_mpirun(), reason="there is no Open MPI")
NEEDS_MPICH = pytest.mark.skipif(not mpi.mpich_mpirun(), reason="there is no MPICH")


@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    [
        ("torchrun", signal.SIGTERM, 1),  # torchrun's own code, whatever the ranks' codes are
        ("launch", signal.SIGINT, 1),
        ("spawn", signal.SIGTERM, 75),
        ("spawn", signal.SIGINT, 75),
        ("spawn", signal.SIGUSR1, 75),
        pytest.param("mpirun", signal.SIGUSR1, 75, marks=NEEDS_OPENMPI),
        pytest.param("mpich", signal.SIGTERM, 75, marks=NEEDS_MPICH),
    ],
)
def test_a_signal_to_the_launcher_stops_all_ranks(
    launcher: str, number: signal.Signals, code: int, project: Render, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    answer = "mpirun" if launcher == "mpich" else launcher
    with running(project(launcher=answer), run_dir, launcher) as process:
        process.send_signal(number)
        possible = {code, 0} if launcher == "mpich" and mpich_forgets_codes() else {code}
        assert process.wait(timeout=scaled(30)) in possible, (tmp_path / "output.log").read_text()
    stopped_at = checkpoint(run_dir)["progress"]["step"]
    assert f"stopped after step {stopped_at};" in (run_dir / "train.log").read_text()
    assert checkpoint(run_dir)["world_size"] == 2


def mpich_forgets_codes() -> bool:
    """Whether it is older than 4.1: it may give 0 where all ranks leave at once after a signal. launch.sh mends it."""
    told = subprocess.run([mpi.mpich_mpirun() or "", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"Version: +(\d+)\.(\d+)", told)
    assert version, told
    return (int(version[1]), int(version[2])) < (4, 1)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_to_one_rank_stops_all(victim: int, project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="torchrun"), run_dir, "torchrun") as process:
        ranks = ranks_of(run_dir)
        assert len(ranks) == 2
        os.kill(ranks[victim], signal.SIGUSR1)
        process.wait(timeout=scaled(30))
    printed = (tmp_path / "output.log").read_text()
    assert "exitcode  : 75" in printed
    assert "stopped after step" in printed


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "spawn"])
def test_a_signal_to_a_run_with_loader_workers_loses_nothing(launcher: str, project: Render, tmp_path: Path) -> None:
    """torchrun signals the whole process group of each rank, and with it the processes that load data."""
    for attempt in range(3):
        run_dir = tmp_path / str(attempt) / "run"
        run_dir.parent.mkdir()
        with running(project(launcher=launcher), run_dir, launcher, "--workers", "2") as process:
            workers = ranks_of(run_dir)
            assert len(workers) == 4, "the leaves: two loader workers for each rank"
            for worker in workers:
                os.kill(worker, signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=scaled(30))
        printed = (run_dir.parent / "output.log").read_text()
        assert "DataLoader worker" not in printed, printed
        stopped_at = checkpoint(run_dir)["progress"]["step"]
        assert f"stopped after step {stopped_at};" in (run_dir / "train.log").read_text()
        assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()], "a worker is left"


def test_workers_end_with_a_rank_that_is_killed(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="spawn"), run_dir, "spawn", "--workers", "2") as process:
        workers = ranks_of(run_dir)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)), 5)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="spawn"), run_dir, "spawn") as process:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=scaled(30))
    steps = checkpoint(run_dir)["progress"]["step"]
    until = ("--max-steps", str(steps + 15))
    train(project(launcher="spawn"), run_dir, *FOR_EVER, *until, "--resume", launcher="spawn")
    train(project(launcher="spawn"), tmp_path / "whole", *FOR_EVER, *until, launcher="spawn")
    assert_same_weights(checkpoint(run_dir), checkpoint(tmp_path / "whole"))


def test_scancel_with_usr1_stops_a_job(own_project: Render, slurm_cluster: Cluster, tmp_path: Path) -> None:
    run_dir, options = tmp_path / "run", [*ON_CPU, "--run-dir", str(tmp_path / "run"), *FOR_EVER]
    request = [f"--output={tmp_path / 'job.log'}"]
    submitted = slurm_cluster.launch(own_project(launcher="slurm"), *options, request=request)
    wait_for_steps(run_dir)
    slurm_cluster.run("scancel", "--signal=USR1", str(submitted))
    job = slurm_cluster.wait(submitted)
    assert job.exit_code == 75, (tmp_path / "job.log").read_text()
    assert "stopped after step" in (run_dir / "train.log").read_text()
