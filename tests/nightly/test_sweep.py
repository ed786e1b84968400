"""Sweeps with real launches: trials are runs, workers share a study, what is killed goes on, what is bad ends early."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from tests.conftest import Render
from tests.core.test_sweep import study_in
from tests.support.processes import PATH, is_running, scaled, wait_for_line, wait_until
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, ranks_of, train
from tools.rewriting import Rewrite

SHORT = ("--max-steps=6", "--log-every=2")
ENV = {**os.environ, "PATH": PATH, "NPROC_PER_NODE": "2", "NPROC": "2"}  # of torchrun, and of spawn
Edit = Callable[..., Path]
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture
def edited(own_project: Render) -> Edit:
    """Return a project whose sweep.py says that the trials have these options, by their number, and a pruner."""

    def get(options: str, launcher: str = "torchrun", pruner: str = "NopPruner()") -> Path:
        project = own_project(launcher=launcher)
        Rewrite("$P.MedianPruner($$$A)", f"$P.{pruner}").apply(project / "sweep.py")
        Rewrite("return [$$$A]", f"return [*{ON_CPU}, *{options}]", "suggest").apply(project / "sweep.py")
        return project

    return get


def start(project: Path, trials: int) -> subprocess.Popen[str]:
    command = [sys.executable, "sweep.py", "--trials", str(trials)]
    worker = subprocess.Popen(
        command, cwd=project, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    STARTED.append(worker)
    return worker


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """Stop the workers of a test that fails: with TERM, since they stop their launches themselves."""
    yield
    while STARTED:
        worker = STARTED.pop()
        worker.terminate()
        worker.communicate(timeout=scaled(60))


def end(worker: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for a worker, and return what it printed. Fails if it ends with another code."""
    out, err = worker.communicate(timeout=scaled(180))
    assert worker.returncode == code, out + err
    return out, err


def trials_of(project: Path) -> list[optuna.trial.FrozenTrial]:
    return study_in(project).trials


def states_of(project: Path) -> list[str]:
    return [trial.state.name for trial in trials_of(project)]


def log_of(project: Path, number: int) -> str:
    log = project / "runs" / "sweep" / str(number) / "train.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "launch"])
def test_a_sweep_names_the_best_of_its_runs(launcher: str, edited: Edit) -> None:
    project = edited(f"{SHORT}, f'--lr={{[1e-5, 1e-2, 1e-4][trial.number]}}'", launcher)
    out, _ = end(start(project, 2))
    assert out.count("trial ") == 3
    out, _ = end(start(project, 3))
    assert out.startswith("trial 2: complete"), "it goes on with the same study"
    results = [
        json.loads((project / "runs" / "sweep" / str(number) / "result.json").read_text()) for number in range(3)
    ]
    assert [trial.value for trial in trials_of(project)] == [result["best"]["accuracy"] for result in results]
    best = max(range(3), key=lambda number: results[number]["best"]["accuracy"])
    assert f"best accuracy {results[best]['best']['accuracy']:.6g}: trial {best} in runs/sweep/{best}, --device" in out
    runs = [f"runs/sweep/{number}" for number in range(3)]
    subprocess.run([sys.executable, "-m", "ddp_project.runtime.report", *runs], cwd=project, env=ENV, check=True)
    assert "world size 2" in log_of(project, 2)


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_worker_leaves_ends_the_same(
    launcher: str, number: signal.Signals, edited: Edit, tmp_path: Path
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
    stopped = log_of(project, 0).count("stopped after step")
    assert stopped == (number == signal.SIGTERM), "TERM costs no step"
    end(start(project, 1))
    assert states_of(project) == ["COMPLETE"]
    assert re.findall(r"resumed from \S+: epoch 1, step ([4-9]|1\d)$", log_of(project, 0), re.MULTILINE)
    assert_same_weights(checkpoint(run_dir), checkpoint(tmp_path / "whole"))
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())["best"]
    assert trials_of(project)[0].value == whole["accuracy"]


def test_two_workers_run_each_trial_once(edited: Edit) -> None:
    project = edited(repr(SHORT))
    workers = [start(project, 5), start(project, 5)]
    printed = [end(worker)[0] for worker in workers]
    assert sorted(re.findall(r"^trial (\d)", "".join(printed), re.MULTILINE)) == ["0", "1", "2", "3", "4"]
    assert all("trial" in out.split("best")[0] for out in printed), "both have run some"
    assert states_of(project) == ["COMPLETE"] * 5
    assert [log_of(project, number).count("world size 2") for number in range(5)] == [1] * 5


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_trial_that_does_badly_is_stopped_early(launcher: str, edited: Edit) -> None:
    options = "['--lr=0.01', '--epochs=3'] if trial.number == 0 else ['--lr=0', '--epochs=2000']"
    project = edited(f"({options})", launcher, "MedianPruner(n_startup_trials=1)")
    end(start(project, 2))
    assert states_of(project) == ["COMPLETE", "PRUNED"]
    good, bad = trials_of(project)
    assert sorted(good.intermediate_values) == [1, 2, 3]
    assert "stopped after step" in log_of(project, 1)
    saved = checkpoint(project / "runs" / "sweep" / "1")["progress"]
    assert 1 <= saved["epoch"] < 1000, "it has its checkpoint"
    assert 1 in bad.intermediate_values


@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "launch"])
@pytest.mark.parametrize(("wrong", "said"), [("--lrr=1", "--lrr"), ("--global-batch-size=3", "--global-batch-size 3")])
def test_a_refused_option_ends_it_in_one_line(launcher: str, wrong: str, said: str, edited: Edit) -> None:
    project = edited(repr((*SHORT, wrong)), launcher)
    _, err = end(start(project, 3), code=2)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert states_of(project) == ["FAIL"]
