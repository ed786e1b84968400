"""metrics.jsonl: every record once and in full precision, whatever it is called, over kills and full disks."""

import json
import math
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Package, Render
from tests.support.ranks import train_on_ranks

OPTIONS = ("--epochs", "3", "--log-every", "5", "--save-every", "5", "--keep", "99")
OF_CLOCK = {"time", "samples_per_second"}
NAMES = (
    "a b",
    'q"uote',
    "recall@1",
    "précision",
    "of a file \udcff",
    "\ud800",
    "two\nlines",
    "",
    "step",
    "time",
    "event",
)
LOG = """\
2026-01-01 00:00:00,000 rank 0 INFO world size 2, rank 0 on cpu
2026-01-01 00:00:01,000 rank 0 INFO step 5  train/loss 3.5e+04  train/accuracy nan  lr 0.1
2026-01-01 00:00:01,500 rank 0 INFO step 5  epoch 1  epoch/validation_loss inf
2026-01-01 00:00:02,000 rank 0 INFO step 8  train/loss 9
2026-01-01 00:00:03,000 rank 0 INFO world size 2, rank 0 on cuda:0
2026-01-01 00:00:04,000 rank 0 INFO resumed from x.pt: epoch 1, step 5
2026-01-01 00:00:05,000 rank 0 INFO step 7  train/loss 2.5
2026-01-01 00:00:06,000 rank 0 INFO stopped after step 7; --resume goes on from here
"""


@pytest.fixture
def records(package: Package) -> Any:
    return package("runtime.records")


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All lines of the file, of which each must be one object."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def measured(run_dir: Path) -> list[dict[str, Any]]:
    """The records that have metrics, but for what depends on the clock."""
    return [{name: one[name] for name in one.keys() - OF_CLOCK} for one in read(run_dir) if "event" not in one]


def test_a_resumed_run_has_each_record_once(project: Render, tmp_path: Path) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    train_on_ranks(project(), whole, *OPTIONS)
    train_on_ranks(project(), run_dir, *OPTIONS, "--max-steps", "38")
    assert measured(run_dir)[-1]["step"] == 38
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 39, "ti')  # as a kill leaves it
    train_on_ranks(project(), run_dir, *OPTIONS, "--resume", str(run_dir / "checkpoints" / "step-00000030.pt"))
    assert measured(run_dir) == measured(whole)
    events = [(one["event"], one["step"]) for one in read(run_dir) if "event" in one]
    assert events == [("started", 0), ("done", 38), ("resumed", 30), ("done", 66)]
    assert len(repr(measured(run_dir)[0]["train/loss"])) > 8, "in full precision"


def test_every_name_and_every_number_comes_back(records: Any, tmp_path: Path) -> None:
    kept = records.Records(tmp_path)
    kept.begin(0)
    metrics = {f"train/{name}": value for name, value in zip(NAMES, [math.inf, -math.inf, *(0.1,) * 9], strict=True)}
    kept.add(1, metrics | {"train/nan": math.nan})
    again = records.Records(tmp_path)
    again.begin(1)
    (found,) = map(records.metrics_in, again.thinned.records())
    assert math.isnan(found.pop("train/nan"))
    assert found == metrics


def test_what_is_cut_back_is_found_from_the_end(records: Any, tmp_path: Path) -> None:
    file, about = tmp_path / "metrics.jsonl", {"event": "stopped"}
    lines = [json.dumps({"step": step, "time": step} | (about if step == 500_000 else {})) for step in range(500_001)]
    file.write_text("\n".join([*lines, '{"step": 500001']))
    started = time.perf_counter()
    for step, last in ((499_990, 499_990), (499_980, 499_980), (499_980, 499_980)):
        records.cut_back(file, step)
        assert json.loads(file.read_bytes().splitlines()[-2])["step"] == last
        assert json.loads(file.read_bytes().splitlines()[-1]) == {"step": 500_000, "time": 500_000, **about}
    assert time.perf_counter() - started < 2, "it reads all of it"
    records.cut_back(file, 0)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 500_000]


def test_little_is_kept_of_a_long_run_and_no_evaluation_is_lost(records: Any) -> None:
    thinned = records.Thinned()
    for step in range(1, 100_001):
        thinned.add(json.dumps({"step": step, "time": step, "train/loss": step, "lr": 1}).encode())
        if step % 2500 == 0:
            thinned.add(json.dumps({"step": step, "time": step, "epoch": step, "epoch/validation_loss": 1}).encode())
        if step == 777:
            thinned.add(json.dumps({"step": step, "time": step, "train/loss": step, "rare": 1}).encode())
    found = thinned.records()
    assert len(found) < 2 * records.POINTS
    assert [one["step"] for one in found if "epoch" in one] == [*range(2500, 100_001, 2500)]
    assert [one["step"] for one in found if "rare" in one] == [777]
    steps = [one["step"] for one in found if "lr" in one]
    assert (steps[0], steps[-1], len(steps) > records.POINTS / 2) == (1, 100_000, True)
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert len(gaps) == 1, "evenly"


def test_a_million_records_are_read_in_a_second_or_so(records: Any, tmp_path: Path) -> None:
    record = {
        "step": 1,
        "time": 1.5,
        "train/loss": 1 / 3,
        "train/accuracy": 1 / 7,
        "lr": 0.1,
        "samples_per_second": 1e4 / 3,
    }
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(record)}\n" * 1_000_000)
    started = time.process_time()
    assert len(records.thinned(tmp_path).records()) == 1, "all lines are the same"
    assert time.process_time() - started < 4


def test_a_log_of_version_1_is_taken_over_once(records: Any, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG + "2026-01-01 00:00:06,000 rank 0 INFO world size 2, now\n")
    kept = records.Records(tmp_path)
    kept.begin(7)
    kept.add(7, {"event": "resumed"})
    for _ in range(2):
        found = [(one["step"], one.get("event", one.get("train/loss", one.get("epoch")))) for one in read(tmp_path)]
        assert found[:-1] == [(0, "started"), (5, 35000.0), (5, 1.0), (5, "resumed"), (7, 2.5), (7, "stopped")]
        records.Records(tmp_path).begin(7)
    assert read(tmp_path)[0]["about"] == "world size 2, rank 0 on cpu"
    assert math.isnan(read(tmp_path)[1]["train/accuracy"])
    assert read(tmp_path)[2]["epoch/validation_loss"] == math.inf


def test_a_full_disk_costs_a_warning_alone(records: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = records.Records(tmp_path)
    kept.begin(0)
    kept.add(1, {"train/loss": 1.0})
    with kept.file, open("/dev/full", "ab", buffering=0) as full:
        own, kept.file = kept.file, full
        for step in (2, 3):
            kept.add(step, {"train/loss": 1.0})
        assert [message.split("metrics.jsonl ")[1] for message in caplog.messages] == [
            "could not be written: No space left on device"
        ]
        kept.file = own
        kept.add(4, {"train/loss": 1.0})
    assert [one["step"] for one in read(tmp_path)] == [1, 2, 3, 4]


def test_new_lines_are_read_once_and_a_file_that_was_cut_back_from_its_start(records: Any, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    new = records.NewLines(file)
    assert [*new] == [], "there is no file yet"
    file.write_bytes(b"1\n2\nhal")
    assert [*new] == [b"1\n", b"2\n"]
    file.write_bytes(b"1\n2\nhalf\n")
    assert [*new] == [b"half\n"]
    assert [*new] == []
    file.write_bytes(b"1\n3\nother\nand more\n")
    assert [*new] == [b"1\n", b"3\n", b"other\n", b"and more\n"], "it is longer than before, but another"
    file.write_bytes(b"1\n")
    assert [*new] == [b"1\n"]


REFUSING = ("recall@1", "recall_1", "a", "a/b", "x" * 300, "b/", "..", "two\nlines", "é@")


def test_a_metric_that_mlflow_refuses_costs_no_other(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # A store of files takes no metric "a/b" beside a metric "a", and says that it has an internal error.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    tracking, kept = package("runtime.tracking", logging="mlflow"), package("runtime.records", logging="mlflow")
    config = package("config", logging="mlflow").Config(run_dir=tmp_path)
    appended = kept.Records(tmp_path)
    appended.begin(0)
    tracker = tracking.make_tracker(config, tracking.World(0, 0, 1, 1), 0)
    for step in (1, 2):
        appended.add(step, metrics := {f"train/{name}": float(step) for name in REFUSING} | {"lr": 0.1})
        tracker.log(step, metrics)
    tracker.close()
    run_id = (tmp_path / "mlflow_run_id").read_text()
    names = [*tracker.client.get_run(run_id).data.metrics]
    steps = {name: {one.step for one in tracker.client.get_metric_history(run_id, name)} for name in names}
    assert all(found == {1, 2} for found in steps.values())
    assert {"train/recall_1", "train/a", "train/two_lines", "lr"} <= steps.keys()
    assert len(steps) == len(REFUSING), "all of the others and lr; no two together"
    refused = [message for message in caplog.messages if "MLflow does not take train/a/b" in message]
    assert len(refused) == 1
    assert len([message for message in caplog.messages if "no metric 'train/recall@1'" in message]) == 1


def test_mlflow_has_after_a_kill_what_was_measured_while_it_was_away(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    tracking, kept = package("runtime.tracking", logging="mlflow"), package("runtime.records", logging="mlflow")
    Config = package("config", logging="mlflow").Config
    for start, resume in ((0, None), (3, "newest"), (5, "newest")):
        appended = kept.Records(tmp_path)
        appended.begin(start)
        tracker = tracking.make_tracker(Config(run_dir=tmp_path, resume=resume), tracking.World(0, 0, 1, 1), start)
        for step in range(start + 1, start + 5):
            named_alike = {"f1@b": 0.9} | ({"f1#b": 0.1} if step > 3 else {})
            appended.add(step, {"train/loss": 1 / step} | ({"epoch": step / 3} if step % 3 == 0 else {}) | named_alike)
            if step == start + 1:
                tracker.flush()  # the last that it has, if this start is killed
    tracker.close()
    run_id = (tmp_path / "mlflow_run_id").read_text()
    history = {name: tracker.client.get_metric_history(run_id, name) for name in ("train/loss", "epoch")}
    assert [(one.step, one.value) for one in history["train/loss"]] == [(step, 1 / step) for step in range(1, 10)]
    assert [one.step for one in history["epoch"]] == [3, 6, 9]
    alike = [name for name in tracker.client.get_run(run_id).data.metrics if name.startswith("f1")]
    values = [[one.value for one in tracker.client.get_metric_history(run_id, name)] for name in sorted(alike)]
    assert values == [9 * [0.9], 6 * [0.1]], "each has one name for the whole run"


def test_wandb_is_told_no_step_twice_over_several_kills(package: Package, tmp_path: Path) -> None:
    kept = package("runtime.records", logging="wandb")
    for start, end in ((0, 30), (10, 12), (10, 20)):  # the second start was killed before it had caught up
        appended = kept.Records(tmp_path)
        appended.begin(start)
        for step in range(start + 1, end + 1):
            appended.add(step, {"train/loss": 1.0} | ({"epoch/\udcff": 1.0} if step % 8 == 0 else {}))
    told = json.loads((tmp_path / "wandb_last_steps").read_text())
    assert told == {"train/loss": 30, "epoch/\udcff": 24}


def test_a_log_alone_is_drawn(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "old"
    run_dir.mkdir()
    (run_dir / "train.log").write_text(LOG)
    (run_dir / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "ddp_project.runtime.report", str(run_dir)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(project())},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert "old training, step 7: 2.5" in page
    assert "step 8" not in page
    assert "resumed at step 5, stopped at step 7" in page
    assert "2026-01-01 00:00:03: world size 2, rank 0 on cuda:0" in page
    assert {path.name for path in run_dir.iterdir()} == {"train.log", "config.json"}, "it may go on, with version 1"
