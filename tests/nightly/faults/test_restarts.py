"""With --max-restarts, torchrun starts a run again and it goes on by itself, unless restarts lead nowhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from generator.chaos.invariants import newest_step
from tests.conftest import Measured, Render
from tests.support.processes import scaled, started, wait_until
from tests.support.ranks import train_on_ranks
from tests.support.training import ON_CPU, Started, assert_same_weights, checkpoint, ranks_of
from tools.rewriting import Rewrite

KILLS, STEPS_BETWEEN = 10, 5
# A mistake that every start makes.
BROKEN = Rewrite("progress = run.progress", '{}\nif run.progress.step >= 0:\n    raise ValueError("a mistake")', "main")


def restarting(project: Path, run_dir: Path, restarts: int, *options: str) -> Started:
    agent = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "train.py"]
    command = [sys.executable, "-m", "torch.distributed.run", *agent, *ON_CPU, "--run-dir", str(run_dir), *options]
    # Without the variable, restarts fail now and then (pytorch#135712): launch.sh sets it, too.
    env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return started(command, project, run_dir.parent / "output.log", env)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    printed = (run_dir.parent / "output.log").read_text
    wait_until(lambda: newest_step(run_dir) >= step or process.poll() is not None, told=printed)
    assert newest_step(run_dir) >= step, printed()


def slowed(project: Path) -> Path:
    """Let each step of a project take a tenth of a second, so that a test can kill it where it wants."""
    Rewrite("run.progress.advance($$$A)", "{}\n__import__('time').sleep(0.1)", "train_step").apply(project / "train.py")
    return project


def test_a_killed_rank_is_restarted_and_the_run_goes_on(
    project: Render, own_project: Render, tmp_path: Path, measured: Measured
) -> None:
    run_dir, steps = tmp_path / "run", STEPS_BETWEEN * (KILLS + 1)
    options = ("--save-every", "1", "--epochs", "9", "--max-steps", str(steps))
    with restarting(slowed(own_project()), run_dir, KILLS, *options) as process:
        for kill in range(1, KILLS + 1):
            wait_for_step(run_dir, kill * STEPS_BETWEEN, process)
            os.kill(ranks_of(run_dir)[kill % 2], signal.SIGKILL)
        assert process.wait(timeout=scaled(120)) == 0, (tmp_path / "output.log").read_text()
    went_on = (run_dir / "train.log").read_text().count("resumed from ")
    assert went_on == KILLS
    train_on_ranks(project(), tmp_path / "whole", *options)
    assert_same_weights(checkpoint(run_dir), checkpoint(tmp_path / "whole"))
    measured("restarts", f"torchrun: restarts that went on by themselves, of {KILLS}", went_on)


def test_restarts_that_lead_nowhere_end(own_project: Render, tmp_path: Path, measured: Measured) -> None:
    project, run_dir = own_project(), tmp_path / "run"
    train_on_ranks(project, run_dir, "--max-steps", "2")
    BROKEN.apply(project / "train.py")
    with restarting(project, run_dir, 20, "--resume") as process:
        assert process.wait(timeout=scaled(100)) == 1
    printed = (tmp_path / "output.log").read_text()
    assert printed.count("error: the run was started 3 times in a row and wrote no checkpoint") == 1
    starts = printed.count("resumed from ")
    assert starts == 4, "the first one and three restarts"
    assert checkpoint(run_dir)["progress"]["step"] == 2
    measured("restarts", "starts that end alike before torchrun is stopped", starts)


def test_a_stop_is_not_restarted(own_project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with restarting(slowed(own_project()), run_dir, 3, "--save-every", "1") as process:
        wait_for_step(run_dir, 2, process)
        os.kill(ranks_of(run_dir)[1], signal.SIGUSR1)
        assert process.wait(timeout=scaled(40)) == 1
    log = (run_dir / "train.log").read_text()
    assert "stopped after step" in log
    assert "resumed from" not in log


@pytest.mark.parametrize("resume", [None, "PATH"])
def test_auto_begins_and_then_goes_on(resume: str | None, project: Render, tmp_path: Path) -> None:
    """By hand, and after a restart of a run that began from another run's checkpoint."""
    other, run_dir = tmp_path / "other", tmp_path / "run"
    train_on_ranks(project(), other, "--max-steps", "3")
    start = ["--resume", str(other / "checkpoints" / "last.pt")] if resume else ["--resume", "auto"]
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"} if resume else {}
    for until in ("5", "7"):
        printed, _ = train_on_ranks(project(), run_dir, *start, "--max-steps", until, env=restarted)
    assert f"resumed from {run_dir / 'checkpoints' / 'last.pt'}: epoch 1, step 5" in printed
    train_on_ranks(project(), run_dir, *start, "--max-steps", "7", env=restarted)  # a run that is complete ends well
    assert (run_dir / "train.log").read_text().count(f"resumed from {other}") == (1 if resume else 0)
