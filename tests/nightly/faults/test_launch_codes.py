"""launch.sh ends with the exit code of the rank that failed first, where torchrun itself ends with 1 for all."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import scaled
from tests.support.training import FOR_EVER, launched, ranks_of, wait_for_steps

LAUNCHERS = pytest.mark.parametrize("launcher", ["torchrun", "launch"])


def code_of(process: subprocess.Popen[bytes]) -> int:
    """Wait until launch.sh has ended, and return its exit code."""
    return process.wait(timeout=scaled(60))


@LAUNCHERS
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--epochs", "0"], 2),
        (["--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1"], 65),
        (["--max-steps", "1"], 0),
    ],
    ids=["refused", "diverged", "done"],
)
def test_it_is_what_the_ranks_end_with(
    launcher: str, options: list[str], code: int, project: Render, tmp_path: Path
) -> None:
    with launched(project(launcher=launcher), tmp_path / "run", *options) as process:
        assert code_of(process) == code
    printed = (tmp_path / "output.log").read_text()
    assert "Traceback" not in printed
    assert printed.count("error: ") == (code != 0)


def test_it_is_what_ends_restarts(project: Render, tmp_path: Path) -> None:
    with launched(project(), tmp_path / "run", "--global-batch-size", "63", MAX_RESTARTS="3") as process:
        assert code_of(process) == 2
    assert (tmp_path / "output.log").read_text().count("error: --global-batch-size 63") == 1


@LAUNCHERS
@pytest.mark.parametrize(
    ("to_launcher", "number"), [(True, signal.SIGTERM), (True, signal.SIGUSR1), (False, signal.SIGTERM)]
)
def test_a_stop_is_75(
    launcher: str, to_launcher: bool, number: signal.Signals, project: Render, tmp_path: Path
) -> None:
    with launched(project(launcher=launcher), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        os.kill(process.pid if to_launcher else ranks_of(tmp_path / "run")[1], number)
        assert code_of(process) == 75, (tmp_path / "output.log").read_text()
    assert "stopped after step" in (tmp_path / "run" / "train.log").read_text()


@LAUNCHERS
def test_a_second_signal_changes_nothing(launcher: str, project: Render, tmp_path: Path) -> None:
    with launched(project(launcher=launcher), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        os.kill(process.pid, signal.SIGTERM)
        for _ in range(20):  # while the ranks finish a step, write a checkpoint and leave
            time.sleep(0.02)
            os.kill(process.pid, signal.SIGINT)
        assert code_of(process) == 75, (tmp_path / "output.log").read_text()
    assert "stopped after step" in (tmp_path / "run" / "train.log").read_text()


@LAUNCHERS
def test_a_killed_rank_is_that_of_a_shell(launcher: str, project: Render, tmp_path: Path) -> None:
    with launched(project(launcher=launcher), tmp_path / "run", *FOR_EVER) as process:
        wait_for_steps(tmp_path / "run")
        os.kill(ranks_of(tmp_path / "run")[1], signal.SIGKILL)
        assert code_of(process) == 128 + signal.SIGKILL, (tmp_path / "output.log").read_text()
