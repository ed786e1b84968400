"""Which run goes on with --resume: after a restart the same one, and none that another program is training."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Package

TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_MAX_RESTARTS": "3"}, {"TORCHELASTIC_RESTART_COUNT": "1"}
# The variables that name a job, and those that it finds after a restart.
JOBS = {
    "torchrun": TORCHRUN,
    "launch": TORCHRUN,
    "slurm": ({"SLURM_JOB_ID": "job"}, {"SLURM_RESTART_COUNT": "1"}),
    "ray": ({"JOB_ID": "job"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
}


def saved(name: str) -> Path:
    """Make a run that has a checkpoint, the newest one in runs/. Returns its directory."""
    checkpoints = Path("runs", name, "checkpoints")
    checkpoints.mkdir(parents=True)
    (checkpoints / "last.pt").touch()
    return checkpoints.parent


@contextmanager
def training(run_dir: Path) -> Iterator[None]:
    """Another program holds the lock of a run."""
    command = ["flock", run_dir / "in-use", "sh", "-c", "echo held; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield


@pytest.mark.parametrize("launcher", JOBS)
def test_a_restarted_job_goes_on_with_its_run(
    launcher: str, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, start = (package(f"runtime.{name}", launcher=launcher) for name in ("checkpoint", "launcher"))
    config = package("config", launcher=launcher).Config
    monkeypatch.chdir(tmp_path)
    named, restarted = JOBS[launcher]
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    resumed = saved("before")
    assert checkpoint.choose_run_dir(start.after_restart(config(resume="newest"))) == resumed
    saved("of-another-job")
    for name, value in restarted.items():
        monkeypatch.setenv(name, value)
    assert checkpoint.choose_run_dir(start.after_restart(config(resume="newest"))) == resumed


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "ray"])
def test_what_torchrun_starts_alone_is_no_job(launcher: str, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names each run, and without --standalone all of them alike: they must not share a run directory."""
    start = package("runtime.launcher", launcher=launcher)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert start.job_name() is None


def test_a_run_in_training_is_not_taken_over(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by --resume nor by a new run."""
    checkpoint, config, exits = (package(name) for name in ("runtime.checkpoint", "config", "runtime.exits"))
    monkeypatch.chdir(tmp_path)
    crashed, live = saved("crashed"), saved("live")
    with training(live):
        for resume in ("newest", "auto"):
            with pytest.raises(exits.UserError, match=r"^runs/live, the newest run, is still training: say which"):
                checkpoint.choose_run_dir(config.Config(resume=resume))
        named = config.Config(resume="newest", run_dir=crashed)
        assert checkpoint.choose_run_dir(named) == crashed
    assert checkpoint.choose_run_dir(config.Config(resume="newest")) == live
    new = config.Config(run_dir=tmp_path)
    with training(tmp_path), pytest.raises(exits.UserError, match=r"is that of a run that is training: choose another"):
        checkpoint.claim(new)
    assert not (tmp_path / "config.json").exists()
    assert checkpoint.claim(new) == []
    assert (tmp_path / "config.json").exists()
