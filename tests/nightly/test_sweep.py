"""Sweeps with real launches: trials are runs, workers share a study, what is killed goes on, what is bad ends early."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.core.test_sweep import study_in
from tests.support.processes import PATH, is_running, scaled, wait_for_line, wait_until
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, ranks_of, train
from tools.rewriting import Rewrite

SHORT = ("--max-steps=6", "--log-every=2")
ENV = {**os.environ, "PATH": PATH, "NPROC_PER_NODE": "2", "NPROC": "2"}  # of torchrun, and of spawn
Edit = Callable[..., Path]
Start = Callable[[Path, int], subprocess.Popen[str]]


@pytest.fixture
def edited(own_project: Render) -> Edit:
    """Return a project whose sweep.py says that the trials have these options, by their number, and a pruner."""

    def get(options: str, launcher: str = "torchrun", pruner: str = "NopPruner()") -> Path:
        project = own_project(launcher=launcher)
        Rewrite("$P.MedianPruner($$$A)", f"$P.{pruner}").apply(project / "sweep.py")
        Rewrite("return [$$$A]", f"return [*{ON_CPU}, *{options}]", "suggest").apply(project / "sweep.py")
        return project

    return get


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield what starts a worker. In the end, TERM stops what is left of a failure: it stops its launches itself."""
    workers: list[subprocess.Popen[str]] = []

    def begin(project: Path, trials: int) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "sweep.py", "--trials", str(trials)], subprocess.PIPE
        where: dict[str, Any] = {"cwd": project, "env": ENV, "start_new_session": True}
        workers.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **where))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.terminate()
        worker.communicate(timeout=scaled(60))


def end(worker: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for a worker, and return what it printed. Fails if it ends with another code."""
    out, err = worker.communicate(timeout=scaled(180))
    assert worker.returncode == code, out + err
    return out, err


def states_of(project: Path) -> list[str]:
    return [trial.state.name for trial in study_in(project).trials]


def accuracy_of(run_dir: Path) -> float:
    return float(json.loads((run_dir / "result.json").read_text())["best"]["accuracy"])


def log_of(project: Path, number: int) -> str:
    log = project / "runs" / "sweep" / str(number) / "train.log"
    return log.read_text() if log.exists() else ""


def test_a_sweep_names_the_best_of_its_runs(edited: Edit, start: Start) -> None:
    project = edited(f"{SHORT}, f'--lr={{[1e-5, 1e-2, 1e-4][trial.number]}}'")
    out, _ = end(start(project, 2))
    assert out.count("trial ") == 3
    out, _ = end(start(project, 3))
    assert out.startswith("trial 2: complete"), "it goes on with the same study"
    reached = [accuracy_of(project / "runs" / "sweep" / str(number)) for number in range(3)]
    assert [trial.value for trial in study_in(project).trials] == reached
    best = reached.index(max(reached))
    assert f"best accuracy {reached[best]:.6g}: trial {best} in runs/sweep/{best}, --device" in out
    assert "world size 2" in log_of(project, 2)


@pytest.mark.parametrize(("launcher", "number"), [("torchrun", signal.SIGKILL), ("spawn", signal.SIGTERM)])
def test_what_a_worker_leaves_ends_the_same(
    launcher: str, number: signal.Signals, edited: Edit, start: Start, tmp_path: Path
) -> None:
    options = ("--max-steps=20", "--save-every=2", "--log-every=1")
    project = edited(repr(options), launcher)
    train(project, tmp_path / "whole", *options, launcher=launcher)
    slow = "__import__('time').sleep(0 if run.config.resume == 'newest' else 0.3)\n{}"
    Rewrite("run.progress.advance($$$A)", slow, "train_step").apply(project / "train.py")
    worker = start(project, 1)
    wait_for_line(project / "runs" / "sweep" / "0" / "train.log", "step 5 ")
    run_dir = project / "runs" / "sweep" / "0"
    ranks = ranks_of(Path("runs/sweep/0"))
    assert len(ranks) == 2
    worker.send_signal(number)
    end(worker, -9 if number == signal.SIGKILL else 75)
    wait_until(lambda: not any(map(is_running, ranks)), 5)
    assert states_of(project) == ["RUNNING"]
    assert log_of(project, 0).count("stopped after step") == (number == signal.SIGTERM), "TERM costs no step"
    end(start(project, 1))
    assert states_of(project) == ["COMPLETE"]
    assert re.findall(r"resumed from \S+: epoch 1, step ([4-9]|1\d)$", log_of(project, 0), re.MULTILINE)
    assert_same_weights(checkpoint(run_dir), checkpoint(tmp_path / "whole"))
    assert study_in(project).trials[0].value == accuracy_of(tmp_path / "whole")


def test_two_workers_run_each_trial_once(edited: Edit, start: Start) -> None:
    project = edited(repr(SHORT))
    workers = [start(project, 4), start(project, 4)]
    printed = [end(worker)[0] for worker in workers]
    assert sorted(re.findall(r"^trial (\d)", "".join(printed), re.MULTILINE)) == ["0", "1", "2", "3"]
    assert all("trial" in out.split("best")[0] for out in printed), "both have run some"
    assert states_of(project) == ["COMPLETE"] * 4
    assert [log_of(project, number).count("world size 2") for number in range(4)] == [1] * 4


def test_a_trial_that_does_badly_is_stopped_early(edited: Edit, start: Start) -> None:
    options = "['--lr=0.01', '--epochs=3'] if trial.number == 0 else ['--lr=0', '--epochs=2000']"
    project = edited(f"({options})", pruner="MedianPruner(n_startup_trials=1)")
    end(start(project, 2))
    assert states_of(project) == ["COMPLETE", "PRUNED"]
    good, bad = study_in(project).trials
    assert sorted(good.intermediate_values) == [1, 2, 3]
    assert "stopped after step" in log_of(project, 1)
    assert 1 <= checkpoint(project / "runs" / "sweep" / "1")["progress"]["epoch"] < 1000, "it has its checkpoint"
    assert 1 in bad.intermediate_values


def test_a_refused_option_ends_it_in_one_line(edited: Edit, start: Start) -> None:
    project = edited(repr((*SHORT, "--global-batch-size=3")))
    _, err = end(start(project, 3), code=2)
    assert (err[:7], err.count("\n")) == ("error: ", 1)
    assert "--global-batch-size 3" in err
    assert states_of(project) == ["FAIL"]
