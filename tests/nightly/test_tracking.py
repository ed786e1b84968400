"""Every logger keeps one run, with each metric of each step once, also after a stop: its own reader tells."""

import functools
import gzip
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]

from generator.check.train.records import READERS, mlflow_runs, read_jsonl, wandb_files, wandb_records
from tests.conftest import Package, Render
from tests.core.test_media import IMPORTS, SHOW
from tests.support.ranks import lone_error_in, train_on_ranks
from tests.support.training import checkpoint, differences, train
from tools.rewriting import extend

OPTIONS = ("--epochs", "4", "--lr", "0.01", "--warmup-steps", "12", "--log-every", "5")

# An epoch has 22 steps. The first run stops after step 32; the second one resumes from step 25 and stops after step 50.
TRAIN_STEPS = [5, 10, 15, 20, 22, 25, 30, 35, 40, 44, 45, 50]
ABANDONED = 32
TIMED = ("samples_per_second", "device/samples_per_second", "waiting/data", "waiting/ranks", "waiting/saves")
OF_STEPS = ("train/loss", "train/accuracy", "lr", "samples", "grad_norm", *TIMED)
OF_EPOCHS = ("epoch", *(f"epoch/{part}_{name}" for part in ("train", "validation") for name in ("loss", "accuracy")))
STEPS_OF_METRIC = dict.fromkeys(OF_STEPS, TRAIN_STEPS) | {name: [22, 44, 50] for name in OF_EPOCHS}
# These stores only grow: what was recorded after the checkpoint stays, and is not recorded again.
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
APPEND_ONLY = ["wandb", "mlflow"]
OFFLINE = {"WANDB_MODE": "offline"}
TRACED = 5  # steps, with --profile


@pytest.fixture(scope="module", autouse=True)
def nobody_is_logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key, no setting and no file of the person who runs the tests reaches a logger."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def run_of(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the run directory of a logger: stopped within the second epoch, and resumed from an older checkpoint."""

    @functools.cache
    def get(logger: str) -> Path:
        run_dir = tmp_path_factory.mktemp(logger) / "run"
        first = (*OPTIONS, "--max-steps", str(ABANDONED), "--save-every", "5", "--keep", "9")
        train_on_ranks(project(logging=logger), run_dir, *first, env=OFFLINE if logger == "wandb" else {})
        second = (*OPTIONS, "--max-steps", "50", "--resume", str(run_dir / "checkpoints" / "step-00000025.pt"))
        train_on_ranks(project(logging=logger), run_dir, *second)
        return run_dir

    return get


@pytest.mark.parametrize("logger", LOGGERS)
def test_each_metric_has_each_step_once_as_metrics_jsonl_has_it(logger: str, run_of: Callable[[str], Path]) -> None:
    history, records = READERS[logger](run_of(logger)), read_jsonl(run_of(logger))
    steps = {name: [step for step, _ in values] for name, values in history.items()}
    before = [ABANDONED] if logger in APPEND_ONLY else []
    assert steps == {name: sorted([*expected, *before]) for name, expected in STEPS_OF_METRIC.items()}
    for name, values in history.items():
        assert [step for step, _ in records[name]] == STEPS_OF_METRIC[name]
        kept = {step: value for step, value in values if step != ABANDONED}
        assert name in TIMED or kept == pytest.approx(dict(records[name]), rel=1e-6), name


def test_wandb_has_one_run_with_the_options_and_says_once_that_it_is_offline(run_of: Callable[[str], Path]) -> None:
    run_dir = run_of("wandb")
    files = wandb_files(run_dir)
    exits = [record.exit.exit_code for file in files for record in wandb_records(file) if record.HasField("exit")]
    assert exits == [0, 0]
    assert len(files) == len([*(run_dir / "wandb").glob("*run-*-*")]) == 2, "one for each start"
    starts = [next(record.run for record in wandb_records(file) if record.HasField("run")) for file in files]
    assert {start.run_id for start in starts} == {(run_dir / "wandb_run_id").read_text()}
    assert {start.project for start in starts} == {"ddp_project"}
    recorded = {update.key: json.loads(update.value_json) for update in starts[-1].config.update}
    recorded.pop("_wandb")
    assert recorded == json.loads((run_dir / "config.json").read_text())
    log = (run_dir / "train.log").read_text()
    assert log.count("no W&B key: recording offline") == 1, "at the second start alone: the first was told to"
    assert "WARNING" not in "".join(file.read_text() for file in run_dir.parent.glob("run-rank-*.out"))


def test_mlflow_has_one_finished_run_with_the_options(run_of: Callable[[str], Path]) -> None:
    run_dir = run_of("mlflow")
    [run] = mlflow_runs(run_dir)
    assert (run.info.run_id, run.info.status) == ((run_dir / "mlflow_run_id").read_text(), "FINISHED")
    at_first_start = json.loads((run_dir / "config.json").read_text())
    at_first_start |= {"max_steps": ABANDONED, "save_every": 5, "keep": 9, "resume": None}
    assert run.data.params == {name: str(value) for name, value in at_first_start.items()}


def test_runs_that_start_at_once_share_an_experiment(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run creates it after this one has looked for it."""
    tracking = package("runtime.tracking", logging="mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    created = client.create_experiment(tracking.EXPERIMENT)
    found = tracking.Tracker.create_experiment(SimpleNamespace(client=client), SimpleNamespace(run_dir=tmp_path))
    assert found == created


@pytest.mark.parametrize("logger", ["mlflow", "wandb"])
def test_a_run_that_an_error_ends_is_marked_as_failed(logger: str, project: Render, tmp_path: Path) -> None:
    options = ("--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1")
    train_on_ranks(project(logging=logger), tmp_path / "run", *options, code=65, env=OFFLINE)
    if logger == "mlflow":
        [run] = mlflow_runs(tmp_path / "run")
        assert run.info.status == "FAILED"
    else:
        [file] = wandb_files(tmp_path / "run")
        assert [record.exit.exit_code for record in wandb_records(file) if record.HasField("exit")] == [1]


def test_an_unusable_tracker_ends_all_ranks_in_one_line(project: Render, tmp_path: Path) -> None:
    run_dir, env = tmp_path / "run", {"MLFLOW_TRACKING_URI": "nowhere://store", "WANDB_MODE": "online"}
    line = lone_error_in(train_on_ranks(project(logging="mlflow"), run_dir, code=2, env=env, timeout=100))
    assert re.search("MLflow.*nowhere", line)
    spawned = project(logging="wandb", launcher="spawn")
    line = lone_error_in([train(spawned, run_dir, launcher="spawn", env=env, code=2, timeout=100)])
    assert re.search("W&B.*WANDB_MODE=offline", line)
    assert not (run_dir / "checkpoints").exists()


@pytest.mark.parametrize("logger", APPEND_ONLY)
def test_a_start_that_begins_anew_has_a_run_of_its_own(logger: str, project: Render, tmp_path: Path) -> None:
    """Where no checkpoint was written, the next start has the log of the one before, and records all of its steps."""
    run_dir = tmp_path / "run"
    for steps in ("10", "20"):
        shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
        train_on_ranks(project(logging=logger), run_dir, *OPTIONS, "--max-steps", steps, env=OFFLINE)
    assert [step for step, _ in READERS[logger](run_dir)["train/loss"]] == [5, 10, 15, 20]
    assert len(mlflow_runs(run_dir) if logger == "mlflow" else wandb_files(run_dir)) == 2


@pytest.mark.parametrize("logger", ["tensorboard", "wandb", "mlflow"])
def test_what_is_shown_is_in_the_logger_at_each_evaluation(
    logger: str, own_project: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project, run_dir = own_project(logging=logger), tmp_path / "run"
    extend(project / "ddp_project" / "task.py", SHOW, imports=IMPORTS)
    train_on_ranks(project, run_dir, "--epochs", "2", env=OFFLINE)
    names, steps = {"digits", "noise", "logits", "text"}, [22, 44]
    if logger == "tensorboard":
        events = event_accumulator.EventAccumulator(
            str(run_dir / "tensorboard"), {"images": 0, "histograms": 0, "tensors": 0}
        ).Reload()
        assert [event.step for event in events.Histograms("logits")] == steps
        assert [event.step for event in events.Tensors("text/text_summary")] == steps
        assert {event.step for name in ("digits", "noise") for event in events.Images(name)} == {*steps}
    elif logger == "wandb":
        [file] = wandb_files(run_dir)
        rows = [record.history for record in wandb_records(file) if record.HasField("history")]
        seen = [{item.nested_key[0] if item.nested_key else item.key for item in row.item} for row in rows]
        assert sum(names <= of_row for of_row in seen) == len(steps)
        assert len([*(run_dir / "wandb").rglob("media/images/*.png")]) == len(steps) * (16 + 3)
    else:
        [run] = mlflow_runs(run_dir)
        artifacts = run_dir / "artifacts" / run.info.run_id / "artifacts"
        kept = sorted(str(file.relative_to(artifacts)) for file in artifacts.rglob("*") if file.is_file())
        assert [name for name in kept if "shown" in name] == [
            f"shown/{name}/step-{step:08d}.{kind}"
            for name, kind in (("logits", "svg"), ("text", "txt"))
            for step in steps
        ]
        assert len([name for name in kept if name.endswith(".png")]) >= 2 * len(steps)
        assert not (tmp_path / "mlruns").exists()
    assert "WARNING" not in (run_dir / "train.log").read_text()


def test_a_trace_holds_five_steps_and_changes_nothing(project: Render, tmp_path: Path) -> None:
    traced, plain = tmp_path / "traced", tmp_path / "plain"
    assert train(project(), traced, "--epochs", "1", "--profile").count("trace.json.gz") == 1
    with gzip.open(traced / "trace.json.gz", "rt") as file:
        names = Counter(event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X")
    assert sum(names[f"ProfilerStep#{step}"] for step in range(11, 11 + TRACED)) == TRACED
    assert names["DistributedDataParallel.forward"] == TRACED
    assert names["Optimizer.step#AdamW.step"] == TRACED
    assert names["gloo:all_reduce"] >= TRACED
    train(project(), plain, "--epochs", "1")
    assert [*plain.glob("trace*")] == []
    one, other = checkpoint(traced), checkpoint(plain)
    del one["config"], other["config"]
    assert differences(one, other) == []
