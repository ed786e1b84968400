"""What a worker of a sweep makes of the ways in which a launch ends, shown with a stand-in for the launch."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tests.conftest import Package, Render

# Ends with the next of the codes in its first option, as a run would: its records, its result, its line for the user.
STAND_IN = """
import json, sys
from pathlib import Path
codes, run_dir = sys.argv[1].split("=")[1].split(","), Path(sys.argv[-1])
assert sys.argv[-4:-1] == ["--resume", "auto", "--run-dir"]
with open(run_dir / "launches", "a+") as file:
    file.write("x")
    file.seek(0)
    launches = len(file.read())
code = int(codes[launches - 1])
records = run_dir / "metrics.jsonl"
whole = [line for line in records.open() if line.endswith("\\n")] if launches > 1 else []
for accuracy in (json.loads("NaN") if code == 65 else 0.1 * launches + 1e-9, 5):
    record = {"step": launches, "time": 0, "epoch": launches, "epoch/validation_accuracy": accuracy}
    whole.append(json.dumps(record) + "\\n")
whole[-1] = whole[-1][:-9]  # as a kill may leave it
records.write_text("".join(whole))
if code in (0, 65, 75):
    (run_dir / "result.json").write_text(json.dumps({"exit_code": code, "best": {"accuracy": 0.1 * launches}}))
if code in (65, 2):
    print("error: what is wrong")
sys.exit(code)
"""
COMPLETE, PRUNED, FAIL = (optuna.trial.TrialState[name] for name in ("COMPLETE", "PRUNED", "FAIL"))


def study_in(folder: Path) -> optuna.Study:
    file = folder / "runs" / "sweep" / "journal.log"
    return optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(str(file))))


class Sweep:
    """A sweep of the stand-in, in a folder of its own."""

    def __init__(self, sweeping: Any, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.sweeping, self.folder, self.patch = sweeping, folder, patch
        (folder / "stand_in.py").write_text(STAND_IN)

    def run(self, *codes: str) -> int:
        self.patch.chdir(self.folder)
        self.patch.setattr(sys, "argv", ["sweep.py", "--trials", str(len(codes))])
        self.patch.setattr(self.sweeping, "POLL", 0.01)
        launch = [sys.executable, "stand_in.py"]
        code: int = self.sweeping.main(lambda trial: [f"--codes={codes[trial.number]}"], launch, PRUNER)
        return code

    def study(self) -> optuna.Study:
        return study_in(self.folder)

    def launches(self, number: int) -> int:
        return len((self.folder / "runs" / "sweep" / str(number) / "launches").read_text())


PRUNER = optuna.pruners.NopPruner()


@pytest.fixture
def sweep(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    handler = signal.getsignal(signal.SIGTERM)
    yield Sweep(package("runtime.sweeping"), tmp_path, monkeypatch)
    signal.signal(signal.SIGTERM, handler)


def test_a_trial_that_stops_or_loses_a_rank_goes_on(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.run("0", "75,69,0") == 0
    trials = sweep.study().trials
    assert [(trial.state, trial.value) for trial in trials] == [(COMPLETE, 0.1), (COMPLETE, pytest.approx(0.3))]
    reported = {epoch: 0.1 * epoch + 1e-9 for epoch in (1, 2, 3)}
    assert trials[1].intermediate_values == reported, "in full precision, without what is torn"
    best = capsys.readouterr().out.splitlines()[-1]
    assert best == "best accuracy 0.3: trial 1 in runs/sweep/1, --codes=75,69,0"


def test_a_trial_that_diverges_or_crashes_does_not_end_the_sweep(sweep: Sweep) -> None:
    assert sweep.run("65", "1", "0") == 0
    trials = sweep.study().trials
    assert [trial.state for trial in trials] == [PRUNED, FAIL, COMPLETE]
    assert math.isnan(trials[0].intermediate_values[1]), "which each pruner of Optuna takes for the worst"
    assert [sweep.launches(number) for number in range(3)] == [1, 1, 1]


def test_a_refusal_ends_the_sweep_in_one_line(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.run("2", "0") == 2
    assert capsys.readouterr().err == "error: what is wrong\n"
    assert sweep.run("2", "0") == 0, "what was refused is not tried again"
    assert [trial.state for trial in sweep.study().trials] == [FAIL, COMPLETE]


def test_only_a_trial_that_nobody_has_is_gone_on_with(sweep: Sweep) -> None:
    sweep.run("0")
    study = sweep.study()
    left, others = study.ask(), study.ask()
    left.suggest_float("lr", 0, 1)
    lock = sweep.folder / "runs" / "sweep" / str(others.number) / "lock"
    lock.parent.mkdir()
    with subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin
        assert other.stdout
        other.stdin.write(b"\n")
        other.stdin.flush()
        assert other.stdout.read(1), "it has the lock"
        assert sweep.run("0", "0", "0") == 0
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "RUNNING"]
        other.stdin.close()
    sweep.run("0", "0", "0")
    assert [sweep.launches(number) for number in range(3)] == [1, 1, 1]
    assert study.trials[1].params == left.params


def test_a_missing_optuna_is_one_line(project: Render, tmp_path: Path) -> None:
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "sweep.py"], cwd=project(), env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: sweep.py needs Optuna: pip install -e . --group sweep\n"
