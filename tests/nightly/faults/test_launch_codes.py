"""launch.sh ends with the exit code of the rank that failed first, where torchrun itself ends with 1 for all."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import scaled
from tests.support.training import FOR_EVER, launched, ranks_of, wait_for_steps


def test_it_is_what_ends_restarts(project: Render, tmp_path: Path) -> None:
    with launched(project(), tmp_path / "run", "--global-batch-size", "63", MAX_RESTARTS="3") as process:
        assert process.wait(scaled(60)) == 2
    assert (tmp_path / "output.log").read_text().count("error: --global-batch-size 63") == 1


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


@pytest.mark.parametrize(("launcher", "stop"), [*(("torchrun", stop) for stop in STOPS), ("launch", "TERM")])
def test_a_stop_is_75(launcher: str, stop: str, project: Render, tmp_path: Path) -> None:
    with launched(project(launcher=launcher), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        STOPS[stop](process, tmp_path / "run")
        assert process.wait(scaled(60)) == 75, (tmp_path / "output.log").read_text()
    assert "stopped after step" in (tmp_path / "run" / "train.log").read_text()


def test_a_killed_rank_is_that_of_a_shell_and_one_line(project: Render, tmp_path: Path) -> None:
    with launched(project(), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        os.kill(ranks_of(tmp_path / "run")[1], signal.SIGKILL)
        assert process.wait(scaled(60)) == 128 + signal.SIGKILL, (tmp_path / "output.log").read_text()
    printed = (tmp_path / "output.log").read_text()
    assert printed.strip().split("\n")[-1] == "rank 1 was ended by SIGKILL"
    assert "Traceback" not in printed
