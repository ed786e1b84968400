"""A signal makes all ranks write one checkpoint and leave; launch.sh ends with the code of the first that failed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import PATH, is_running, scaled, started, wait_for_line, wait_until
from tests.support.training import FOR_EVER, ON_CPU, checkpoint, launched, ranks_of, running, wait_for_steps


def assert_stopped(run_dir: Path) -> None:
    saved = checkpoint(run_dir)
    assert saved["world_size"] == 2
    assert f"stopped after step {saved['progress']['step']};" in (run_dir / "train.log").read_text()


@pytest.mark.parametrize(("launcher", "number"), [("torchrun", signal.SIGTERM), ("spawn", signal.SIGUSR1)])
def test_a_signal_to_a_run_with_loader_workers_loses_nothing(
    launcher: str, number: signal.Signals, project: Render, tmp_path: Path
) -> None:
    """torchrun signals the whole process group of each rank, and with it the processes that load data."""
    run_dir = tmp_path / "run"
    with running(project(launcher=launcher), run_dir, launcher, "--workers", "2") as process:
        workers = ranks_of(run_dir)
        assert len(workers) == 4, "the leaves: two loader workers for each rank"
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        process.send_signal(number)
        code = process.wait(timeout=scaled(30))
    printed = (tmp_path / "output.log").read_text()
    assert "DataLoader worker" not in printed, printed
    assert launcher == "torchrun" or code == 75, printed
    assert_stopped(run_dir)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()], "a worker is left"


def test_workers_end_with_a_rank_that_is_killed(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="spawn"), run_dir, "spawn", "--workers", "2") as process:
        workers = ranks_of(run_dir)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)), 5)


def signal_twice(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Send TERM, and INT while the ranks finish a step, write a checkpoint and leave."""
    os.kill(process.pid, signal.SIGTERM)
    for _ in range(20):
        time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)


STOPS: dict[str, Callable[[subprocess.Popen[bytes], Path], object]] = {
    "TERM": lambda process, run_dir: os.kill(process.pid, signal.SIGTERM),
    "USR1": lambda process, run_dir: os.kill(process.pid, signal.SIGUSR1),
    "TERM to a rank": lambda process, run_dir: os.kill(ranks_of(run_dir)[1], signal.SIGTERM),
    "two signals": signal_twice,
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_is_75(stop: str, project: Render, tmp_path: Path) -> None:
    with launched(project(), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        STOPS[stop](process, tmp_path / "run")
        assert process.wait(scaled(60)) == 75, (tmp_path / "output.log").read_text()
    assert_stopped(tmp_path / "run")


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "spawn"])
@pytest.mark.parametrize("nohup", [True, False])
def test_a_run_outlives_its_terminal_with_nohup(launcher: str, nohup: bool, project: Render, tmp_path: Path) -> None:
    """Without it, the run stops like with any other signal."""
    run_dir, env = tmp_path / "run", {**os.environ, "PATH": PATH, "NPROC_PER_NODE": "2", "NPROC": "2"}
    command = [*(["nohup"] if nohup else []), "./launch.sh", *ON_CPU, "--run-dir", str(run_dir), *FOR_EVER]
    with started(command, project(launcher=launcher), tmp_path / "output.log", env) as process:
        wait_for_steps(run_dir)
        os.killpg(process.pid, signal.SIGHUP)
        if nohup:
            wait_for_line(run_dir / "train.log", "step 1500 ", limit=300)
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(scaled(60)) == 75, (tmp_path / "output.log").read_text()
    assert_stopped(run_dir)


def test_a_killed_rank_is_that_of_a_shell_and_one_line(project: Render, tmp_path: Path) -> None:
    with launched(project(), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        os.kill(ranks_of(tmp_path / "run")[1], signal.SIGKILL)
        assert process.wait(scaled(60)) == 128 + signal.SIGKILL, (tmp_path / "output.log").read_text()
    printed = (tmp_path / "output.log").read_text()
    assert printed.strip().split("\n")[-1] == "rank 1 was ended by SIGKILL"
    assert "Traceback" not in printed
