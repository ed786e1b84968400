"""What a worker of a sweep makes of the ways in which a launch ends, shown with a stand-in for the launch."""

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tests.conftest import Package, Render
from tests.support.processes import output_of

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
    start = {"step": launches, "time": 0, "event": "started", "sets": ["first", "validation"]}
    record = {"step": launches, "time": 0, "epoch": 1, "epoch/first_accuracy": accuracy}
    record["epoch/validation_accuracy"] = -1
    whole.append(json.dumps(start) + "\\n")
    whole.append(json.dumps(record) + "\\n")
whole[-1] = whole[-1][:-9]  # as a kill may leave it
records.write_text("".join(whole))
if code in (0, 65, 75):
    (run_dir / "result.json").write_text(json.dumps({"exit_code": code, "best": {"accuracy": 0.1 * launches}}))
sys.exit(code)
"""
COMPLETE, PRUNED, FAIL = (optuna.trial.TrialState[name] for name in ("COMPLETE", "PRUNED", "FAIL"))
Sweep = Callable[..., int]


def study_in(folder: Path) -> optuna.Study:
    file = folder / "runs" / "sweep" / "journal.log"
    return optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(str(file))))


@pytest.fixture
def sweep(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    """Sweeps with the stand-in in tmp_path, whose launches of each trial end with these codes."""
    module, handler = package("runtime.sweep"), signal.getsignal(signal.SIGTERM)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "POLL", 0.01)

    def run(*codes: str) -> int:
        monkeypatch.setattr(sys, "argv", ["sweep.py", "--trials", str(len(codes))])
        launch, pruner = [sys.executable, "stand_in.py"], optuna.pruners.NopPruner()
        return int(module.main(lambda trial: [f"--codes={codes[trial.number]}"], launch, pruner))

    yield run
    signal.signal(signal.SIGTERM, handler)


def test_a_sweep_goes_on_however_a_trial_ends(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that stops or loses a rank is resumed, one that diverges is pruned, and one that crashes has failed."""
    assert sweep("0", "75,69,0", "65", "1") == 0
    trials = study_in(tmp_path).trials
    assert [trial.state for trial in trials] == [COMPLETE, COMPLETE, PRUNED, FAIL]
    assert [trial.value for trial in trials[:2]] == [0.1, pytest.approx(0.3)]
    reported = {number: 0.1 * number + 1e-9 for number in (1, 2, 3)}
    assert trials[1].intermediate_values == reported, "each of an epoch, in full precision, without what is torn"
    assert math.isnan(trials[2].intermediate_values[1]), "which each pruner of Optuna takes for the worst"
    launches = [(tmp_path / "runs" / "sweep" / str(number) / "launches").read_text() for number in range(4)]
    assert launches == ["x", "xxx", "x", "x"]
    assert capsys.readouterr().out.splitlines()[-1] == "best accuracy 0.3: trial 1 in runs/sweep/1, --codes=75,69,0"


def test_other_choices_than_the_study_has_are_one_line(
    sweep: Sweep, package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep("0") == 0
    module, launch = package("runtime.sweep"), [sys.executable, "stand_in.py"]
    for name, count, choices, said in (
        ("sweep", "2", ["0"], None),
        ("sweep", "3", ["0", "65"], "sweep.py: suggest() fails: ValueError "),
        ("a/b", "3", ["0"], "--name must be the name of a folder in runs/, not 'a/b'"),
        ("..", "3", ["0"], "--name must be the name of a folder in runs/, not '..'"),
        ("", "3", ["0"], "--name must be the name of a folder in runs/, not ''"),
        ("file", "3", ["0"], "--name file: runs/file cannot be made: File exists"),
    ):
        Path("runs/file").touch()
        monkeypatch.setattr(sys, "argv", ["sweep.py", "--trials", count, "--name", name])
        suggest = lambda trial, choices=choices: [f"--codes={trial.suggest_categorical('code', choices)}"]  # noqa: E731
        assert module.main(suggest, launch, optuna.pruners.NopPruner()) == (2 if said else 0)
        assert capsys.readouterr().err.startswith(f"error: {said}" if said else "")
    for name, value in (("BEST", "loss"), ("HIGHER_IS_BETTER", False)):
        with monkeypatch.context() as patch:
            patch.setattr(module.task, name, value)
            assert sweep("0") == 2
        said = "runs/sweep began with another BEST or HIGHER_IS_BETTER: give another --name"
        assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.usefixtures("sweep")
def test_a_missing_launcher_is_one_line(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep.py"])
    assert package("runtime.sweep").main(lambda trial: [], ["./launch.sh"], optuna.pruners.NopPruner()) == 2
    assert capsys.readouterr().err == "error: [Errno 2] No such file or directory: './launch.sh'\n"


def test_a_missing_optuna_is_one_line(project: Render, tmp_path: Path) -> None:
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError")
    printed = output_of([sys.executable, "sweep.py"], project(), {**os.environ, "PYTHONPATH": str(tmp_path)}, code=2)
    assert printed == "error: sweep.py needs Optuna: pip install -e . --group sweep\n"
