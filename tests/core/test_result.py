"""Which run goes on with --resume, and how a run ends by itself: --patience, --max-hours, result.json."""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from generator.update.replay import put_under_git
from tests.conftest import Package, Render
from tests.core.test_checkpoints import logged
from tests.support.ranks import assert_same_state, train_on_ranks
from tests.support.training import checkpoint, differences
from tests.support.versions import append

TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_MAX_RESTARTS": "3"}, {"TORCHELASTIC_RESTART_COUNT": "1"}
# The variables that name a job, and those that it finds after a restart.
JOBS = {
    "torchrun": TORCHRUN,
    "launch": TORCHRUN,
    "slurm": ({"SLURM_JOB_ID": "job"}, {"SLURM_RESTART_COUNT": "1"}),
    "ray": ({"JOB_ID": "job"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
}


def result(run_dir: Path) -> Any:
    return json.loads((run_dir / "result.json").read_text())


def test_patience_ends_a_run_that_gets_no_better(project: Render, tmp_path: Path) -> None:
    run_dir, options = tmp_path / "run", ("--lr", "0", "--epochs", "20", "--global-batch-size", "478")
    train_on_ranks(project(), run_dir, *options, "--patience", "2", "--max-steps", "4")  # 3 steps are an epoch
    assert (result(run_dir)["exit_code"], result(run_dir)["step"]) == (0, 4)
    printed = train_on_ranks(project(), run_dir, *options, "--patience", "4", "--resume")
    seen = logged(run_dir, "epoch/validation_accuracy")
    best = max(seen, key=lambda step: seen[step])
    ended = result(run_dir)
    assert (ended["step"], ended["epoch"]) == ([*seen][-1], [*seen][-1] // 3)
    at_epochs = [step for step in seen if step % 3 == 0]
    assert [*seen] == [3, 4, *at_epochs[1:]]
    assert at_epochs.index(best) == len(at_epochs) - 5, "four after the best one, but for that of --max-steps"
    assert (ended["best"]["step"], ended["best"]["accuracy"]) == (best, pytest.approx(seen[best], abs=1e-4))
    assert printed[0].count("no better validation accuracy in the last 4 evaluations") == 1
    assert "train/loss" not in train_on_ranks(project(), run_dir, *options, "--patience", "4", "--resume")[0]
    assert result(run_dir)["step"] == ended["step"]


def test_a_run_may_have_its_length_in_steps(project: Render, package: Package, tmp_path: Path) -> None:
    options = ("--steps", "7", "--global-batch-size", "478", "--log-every", "1", "--warmup-steps", "2")  # of 3 an epoch
    train_on_ranks(project(), tmp_path / "run", *options, "--max-steps", "5")
    printed = train_on_ranks(project(), tmp_path / "run", *options, "--max-steps", "50", "--resume")
    assert printed[0].count("--steps 7 are over before --max-steps 50") == 1
    config = package("config").Config(warmup_steps=2)
    expected = {step + 1: package("task").lr_at(step, 7, config) for step in range(7)}
    assert logged(tmp_path / "run", "lr") == pytest.approx(expected, rel=1e-3)
    assert [*logged(tmp_path / "run", "epoch/validation_accuracy")] == [3, 5, 6, 7]
    assert (result(tmp_path / "run")["step"], result(tmp_path / "run")["epoch"]) == (7, 2)
    train_on_ranks(project(), tmp_path / "whole", *options)
    one, other = (checkpoint(tmp_path / name) for name in ("run", "whole"))
    assert differences(one["model"], other["model"]) == []


def test_a_run_stops_before_its_hours_are_over_and_goes_on(project: Render, tmp_path: Path) -> None:
    options = ("--epochs", "1", "--log-every", "1", "--global-batch-size", "96")
    printed = train_on_ranks(project(), tmp_path / "whole", *options, "--max-steps", "50")
    assert printed[0].count("--epochs 1 are over before --max-steps 50") == 1
    hours = ("--max-hours", "1e-9")  # over at the first report
    train_on_ranks(project(), tmp_path / "run", *options, *hours, code=75)
    assert (result(tmp_path / "run")["exit_code"], result(tmp_path / "run")["step"]) == (75, 1)
    train_on_ranks(project(), tmp_path / "run", *options, *hours, "--resume", code=75)
    assert result(tmp_path / "run")["step"] == 2
    train_on_ranks(project(), tmp_path / "run", *options, "--max-hours", "1", "--resume")
    assert_same_state(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "whole"))
    one, other = result(tmp_path / "run"), result(tmp_path / "whole")
    same = {name: one[name] == other[name] for name in ("best", "code_sha256", "config_sha256")}
    assert same == {"best": True, "code_sha256": True, "config_sha256": False}


def test_a_result_has_the_code_of_an_error_or_is_not_there(own_project: Render, tmp_path: Path) -> None:
    run_dir, place = tmp_path / "run", own_project()
    train_on_ranks(place, run_dir, "--max-steps", "2")
    diverging = ("--resume", "--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1")
    train_on_ranks(place, run_dir, *diverging, code=65)
    assert result(run_dir)["exit_code"] == 65
    append(place / "ddp_project" / "task.py", "\n\ndef lr_at(*_: object) -> float:\n    raise RuntimeError\n")
    train_on_ranks(place, run_dir, "--resume", processes=1, code=1)  # of two, one may hear first that the other ends
    assert not (run_dir / "result.json").exists()


def test_a_resume_names_code_that_has_changed(own_project: Render, tmp_path: Path) -> None:
    run_dir, place = tmp_path / "run", own_project()
    put_under_git(place)
    train_on_ranks(place, run_dir, "--max-steps", "2")
    before = result(run_dir)["commit"]
    assert re.fullmatch(r"[0-9a-f]{12}", before)
    assert "other code" not in train_on_ranks(place, run_dir, "--max-steps", "3", "--resume")[0]
    append(place / "ddp_project" / "task.py", "# edited\n")
    append(place / "evaluate.py", "# edited\n")
    (place / "ddp_project" / "more.py").write_text("")
    printed = train_on_ranks(place, run_dir, "--max-steps", "4", "--resume")[0]
    assert f"other code than before: evaluate.py, more.py, task.py (commit {before}-dirty, was {before})" in printed


def saved(name: str) -> Path:
    """Make a run that has a checkpoint, the newest one in runs/. Returns its directory."""
    checkpoints = Path("runs", name, "checkpoints")
    checkpoints.mkdir(parents=True)
    (checkpoints / "last.pt").touch()
    return checkpoints.parent


@contextmanager
def training(run_dir: Path) -> Iterator[None]:
    """Another program holds the lock of a run."""
    command = ["flock", str(run_dir / "in-use"), "sh", "-c", "echo held; cat"]
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


def test_a_run_that_is_resumed_twice_is_written_by_one(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program that holds it, but writes nothing, may be out of reach."""
    checkpoint, config, exits = (package(name) for name in ("runtime.checkpoint", "config", "runtime.exits"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "ENDS_WITHIN", 1.0)
    again = config.Config(run_dir=saved("run"), resume="auto")
    with training(again.run_dir):
        writes = ["sh", "-c", "while echo {} >>metrics.jsonl; do sleep 0.1; done"]
        with subprocess.Popen(writes, cwd=again.run_dir) as other:
            with pytest.raises(exits.UserError, match=r"is that of a run that is training: choose another"):
                checkpoint.claim(again)
            other.kill()
        checkpoint.claim(again)
        assert (again.run_dir / "config.json").exists()
    assert checkpoint.take(again.run_dir)
    monkeypatch.setattr(checkpoint, "ENDS_WITHIN", math.inf)
    checkpoint.claim(again)  # what this program has taken itself, it does not wait for


def test_a_run_in_training_is_not_taken_over(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by --resume nor by a new run."""
    checkpoint, config, exits = (package(name) for name in ("runtime.checkpoint", "config", "runtime.exits"))
    monkeypatch.chdir(tmp_path)
    crashed, live = saved("crashed"), saved("live")
    with training(live):
        for resume in ("newest", "auto"):
            with pytest.raises(exits.UserError, match=r"^runs/live, the newest run, is still training: say which"):
                checkpoint.choose_run_dir(config.Config(resume=resume))
        assert checkpoint.choose_run_dir(config.Config(resume="newest", run_dir=crashed)) == crashed
    assert checkpoint.choose_run_dir(config.Config(resume="newest")) == live
    new = config.Config(run_dir=tmp_path)
    with training(tmp_path), pytest.raises(exits.UserError, match=r"is that of a run that is training: choose another"):
        checkpoint.claim(new)
    assert not (tmp_path / "config.json").exists()
    assert checkpoint.claim(new) == []
    assert (tmp_path / "config.json").exists()
