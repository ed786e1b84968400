"""A signal to spawn, or to processes that load data, makes all ranks write one checkpoint and leave."""

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import is_running, scaled, wait_until
from tests.support.training import checkpoint, ranks_of, running


def assert_stopped(run_dir: Path) -> None:
    """All ranks have saved after the step that the log names."""
    saved = checkpoint(run_dir)
    assert saved["world_size"] == 2
    assert f"stopped after step {saved['progress']['step']};" in (run_dir / "train.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_spawn_stops_all_ranks(number: signal.Signals, project: Render, tmp_path: Path) -> None:
    with running(project(launcher="spawn"), tmp_path / "run", "spawn") as process:
        process.send_signal(number)
        assert process.wait(timeout=scaled(30)) == 75, (tmp_path / "output.log").read_text()
    assert_stopped(tmp_path / "run")


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_signal_to_a_run_with_loader_workers_loses_nothing(launcher: str, project: Render, tmp_path: Path) -> None:
    """torchrun signals the whole process group of each rank, and with it the processes that load data."""
    run_dir = tmp_path / "run"
    with running(project(launcher=launcher), run_dir, launcher, "--workers", "2") as process:
        workers = ranks_of(run_dir)
        assert len(workers) == 4, "the leaves: two loader workers for each rank"
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=scaled(30))
    printed = (tmp_path / "output.log").read_text()
    assert "DataLoader worker" not in printed, printed
    assert_stopped(run_dir)
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()], "a worker is left"


def test_workers_end_with_a_rank_that_is_killed(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="spawn"), run_dir, "spawn", "--workers", "2") as process:
        workers = ranks_of(run_dir)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)), 5)
