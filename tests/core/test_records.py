"""metrics.jsonl has every record once and in full precision, and report.html shows what it has."""

import json
import math
import os
import re
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from generator.chaos.invariants import newest_step
from generator.check.train.records import OF_CLOCK, read_csv, read_tensorboard
from tests.conftest import Package, Render, of_package
from tests.support.processes import output_of, wait_until
from tests.support.ranks import kill_after, start_ranks, train_on_ranks
from tests.support.versions import append

OPTIONS = ("--epochs", "3", "--log-every", "5", "--save-every", "5", "--keep", "99")
records = of_package("runtime.records")
NAMES = ("a b", 'q"uote', "recall@1", "précision", "file \udcff", "\ud800", "two\nlines", "", "step", "time", "event")
REFUSING = ("recall@1", "recall_1", "a", "a/b", "x" * 300, "b/", "..", "two\nlines", "é@")
LONG = ("--epochs", "40", "--save-every", "5", "--log-every", "4")


Point = tuple[str, str, int, float]  # the run, the metric, the step and the value
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


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All lines of the file, of which each must be one object."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def measured(run_dir: Path) -> list[dict[str, Any]]:
    """The records that have metrics, but for what depends on the clock."""
    of_clock = ("time", *OF_CLOCK)
    found = [one for one in read(run_dir) if "event" not in one]
    return [{name: one[name] for name in one if not name.startswith(of_clock)} for one in found]


def test_a_resumed_run_has_each_record_once(project: Render, tmp_path: Path) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    train_on_ranks(project(), whole, *OPTIONS)
    train_on_ranks(project(), run_dir, *OPTIONS, "--max-steps", "38")
    assert measured(run_dir)[-1]["step"] == 38
    append(run_dir / "metrics.jsonl", '{"step": 39, "ti')  # as a kill leaves it
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
    """And a million records are read in seconds."""
    file, stopped = tmp_path / "metrics.jsonl", {"step": 1_000_000, "time": 1_000_000, "event": "stopped"}
    lines = [json.dumps({"step": step, "time": 1.5, "lr": 0.1, "train/loss": 1 / 3}) for step in range(1_000_000)]
    file.write_text("\n".join([*lines, json.dumps(stopped), '{"step": 1000001']))
    started = time.process_time()
    for step in (999_990, 999_980, 999_980):
        records.cut_back(file, step)
    assert time.process_time() - started < 1, "it reads all of it"
    assert len(records.thinned(tmp_path).records()) < 2 * records.POINTS
    assert time.process_time() - started < 5
    *_, newest, event = file.read_bytes().splitlines()
    assert (json.loads(newest)["step"], json.loads(event)) == (999_980, stopped)
    records.cut_back(file, 0)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 1_000_000]


def test_little_is_kept_of_a_long_run_and_no_evaluation_is_lost(records: Any) -> None:
    thinned = records.Thinned()
    for step in range(1, 100_001):
        rows = [{"train/loss": step, "lr": 1}]
        if step % 2500 == 0:
            rows.append({"epoch": step, "epoch/validation_loss": 1})
        if step == 777:
            rows.append({"rare": 1})
        for row in rows:
            thinned.add(json.dumps({"step": step, "time": step, **row}).encode())
    found = thinned.records()
    assert len(found) < 2 * records.POINTS
    steps = {name: [one["step"] for one in found if name in one] for name in ("epoch", "rare", "lr")}
    assert (steps["epoch"], steps["rare"]) == ([*range(2500, 100_001, 2500)], [777])
    first, *_, last = steps["lr"]
    assert (first, last, len(steps["lr"]) > records.POINTS / 2) == (1, 100_000, True)
    assert len({after - before for before, after in pairwise(steps["lr"][:-1])}) == 1, "evenly"


def test_a_full_disk_costs_a_warning_alone(records: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = records.Records(tmp_path)
    kept.begin(0)
    kept.add(1, {"train/loss": 1.0})
    with kept.file, open("/dev/full", "ab", buffering=0) as full:
        own, kept.file = kept.file, full
        for step in (2, 3):
            kept.add(step, {"train/loss": 1.0})
        [message] = caplog.messages
        assert message.endswith("metrics.jsonl could not be written: No space left on device")
        kept.file = own
        kept.add(4, {"train/loss": 1.0})
    assert [one["step"] for one in read(tmp_path)] == [1, 2, 3, 4]


def test_new_lines_are_read_once_and_a_file_that_was_cut_back_from_its_start(records: Any, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    new = records.NewLines(file)
    assert [*new] == [], "there is no file yet"
    for content, lines in (
        (b"1\n2\nhal", [b"1\n", b"2\n"]),
        (b"1\n2\nhalf\n", [b"half\n"]),
        (b"1\n2\nhalf\n", []),
        (b"1\n3\nother\nand more\n", [b"1\n", b"3\n", b"other\n", b"and more\n"]),  # longer than before, but another
        (b"1\n", [b"1\n"]),
    ):
        file.write_bytes(content)
        assert [*new] == lines


def test_a_metric_that_mlflow_refuses_costs_no_other(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store of files takes no metric "a/b" beside a metric "a", and says that it has an internal error."""
    caplog.set_level("INFO")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    tracking, kept = package("runtime.tracking", logging="mlflow"), package("runtime.records", logging="mlflow")
    config = package("config", logging="mlflow").Config(run_dir=tmp_path)
    appended = kept.Records(tmp_path)
    appended.begin(0)
    tracker = tracking.make_tracker(config, tracking.DistEnv(0, 0, 1, 1))
    for step in (1, 2):
        appended.add(step, metrics := {f"train/{name}": float(step) for name in REFUSING} | {"lr": 0.1})
        tracker.log(step, metrics)
    tracker.close()
    run_id, client = (tmp_path / "mlflow_run_id").read_text(), tracker.client
    names = client.get_run(run_id).data.metrics
    steps = {name: {one.step for one in client.get_metric_history(run_id, name)} for name in names}
    assert all(found == {1, 2} for found in steps.values())
    assert {"train/recall_1", "train/a", "train/two_lines", "lr"} <= steps.keys()
    assert len(steps) == len(REFUSING), "all of the others and lr; no two together"
    for said in ("MLflow does not take train/a/b", "no metric 'train/recall@1'"):
        assert len([message for message in caplog.messages if said in message]) == 1


def test_wandb_is_told_no_step_twice_over_several_kills(package: Package, tmp_path: Path) -> None:
    kept = package("runtime.records", logging="wandb")
    for start, end in ((0, 30), (10, 12), (10, 20)):  # the second start was killed before it had caught up
        appended = kept.Records(tmp_path)
        appended.begin(start)
        for step in range(start + 1, end + 1):
            appended.add(step, {"train/loss": 1.0} | ({"epoch/\udcff": 1.0} if step % 8 == 0 else {}))
    assert json.loads((tmp_path / "wandb_last_steps").read_text()) == {"train/loss": 30, "epoch/\udcff": 24}


def data_of(page: Path) -> Any:
    """Return what the page draws. Fails where a browser could not read it: JSON has no NaN."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(data, parse_constant=pytest.fail)["runs"]


def points(page: Path) -> list[Point]:
    found = []
    for run in data_of(page):
        for series in run["series"]:
            for name in series.keys() - {"step", "time"}:
                found += [(run["name"], name, *point) for point in zip(series["step"], series[name], strict=True)]
    return sorted(found)


def recorded(*run_dirs: Path) -> list[Point]:
    found = []
    for run_dir in run_dirs:
        for name, points in read_csv(run_dir).items():
            found += [(run_dir.name, name, step, float(f"{value:.6g}")) for step, value in points]
    return sorted(found)


def test_the_page_shows_what_was_recorded_over_a_kill_and_a_stop(
    project: Render, package: Package, tmp_path: Path
) -> None:
    run_dir = tmp_path / "a <b> & c"
    assert kill_after(start_ranks(project(logging="csv"), run_dir, *LONG), run_dir, 30, 0.02)
    [killed] = data_of(run_dir / "report.html")
    assert (killed["events"][-1]["event"], "exit_code" in killed["result"]) == ("started", False)
    package("runtime.report", logging="csv").write_page([run_dir], tmp_path / "report.html")
    assert data_of(tmp_path / "report.html")[0]["abandoned"], "nobody holds the lock of the run"
    append(run_dir / "metrics.jsonl", '{"step": 31, "time": 1.0, "train/lo')  # as a kill may leave it
    first = min((run_dir / "checkpoints").glob("step-*.pt"))  # what was recorded after it is trained once more
    ranks = start_ranks(project(logging="csv"), run_dir, *LONG, "--resume", str(first))
    wait_until(lambda: newest_step(run_dir) >= 60, told=ranks[0].output.read_text)
    os.kill(ranks[1].process.pid or 0, signal.SIGTERM)
    for rank in ranks:
        rank.ends_with(75, 60)
    assert points(run_dir / "report.html") == recorded(run_dir)
    train_on_ranks(project(logging="csv"), run_dir, *LONG, "--resume", "--max-steps", "100", "--lr", "0.001")
    assert points(run_dir / "report.html") == recorded(run_dir)
    log_text = (run_dir / "train.log").read_text()
    once, again = map(int, re.findall(r"resumed from .* step (\d+)$", log_text, re.MULTILINE))
    (stopped,) = map(int, re.findall(r"stopped after step (\d+);", log_text))
    [run] = data_of(run_dir / "report.html")
    marks = [(event["event"], event["step"]) for event in run["events"]]
    assert marks == [("started", 0), ("resumed", once), ("stopped", stopped), ("resumed", again), ("done", 100)]
    assert (run["name"], run["options"]["lr"], run["result"]["exit_code"]) == ("a <b> & c", 0.001, 0)
    assert run["result"]["samples"] == max(run["series"][0]["samples"]) == 100 * run["options"]["global_batch_size"]
    assert {"lr", "log_every", "save_every", "max_steps"} <= {*run["events"][-2]["changed"]}
    assert not {"seed", "run_dir", "resume"} & {*run["events"][-2]["changed"]}
    assert "<b> &" not in (run_dir / "report.html").read_text()


def test_what_is_not_finite_is_a_gap(package: Package, tmp_path: Path) -> None:
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step, value in enumerate([4.0, math.nan, 2.0, 3.0, math.inf, -math.inf, 1.0]):
            print(json.dumps({"step": step, "time": step, "train/loss": value, "train/x": math.nan}), file=file)
    (tmp_path / "config.json").write_text('{"clip_norm": Infinity, "low": -Infinity, "lr": NaN}')
    package("runtime.report").write_page([tmp_path], tmp_path / "report.html")
    [run] = data_of(tmp_path / "report.html")
    assert run["options"] == {"clip_norm": "Infinity", "low": "-Infinity", "lr": "NaN"}
    assert run["series"] == [
        {
            "step": [*range(7)],
            "time": [*range(7)],
            "train/loss": [4, None, 2, 3, None, None, 1],
            "train/x": [None] * 7,
        }
    ]


def test_the_page_has_whole_counts_in_the_order_of_the_lines(package: Package, tmp_path: Path) -> None:
    """Also where the clock of the node is slow that resumed the run."""
    lines: list[dict[str, Any]] = [
        {"step": 0, "time": 90, "event": "started"},
        {"step": 1, "time": 99, "tokens": 1234567.0, "lr": 0.12345678},
        {"step": 1, "time": 99, "event": "stopped"},
        {"step": 1, "time": 50, "event": "resumed"},
        {"step": 2, "time": 60, "tokens": 2469134.0, "lr": 1e-9},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "config.json").write_text("{}")
    package("runtime.report").write_page([tmp_path], tmp_path / "report.html")
    [run] = data_of(tmp_path / "report.html")
    assert [event["event"] for event in run["events"]] == ["started", "stopped", "resumed"]
    [series] = run["series"]
    assert (series["tokens"], series["lr"]) == ([1234567, 2469134], [0.123457, 1e-9])


def test_runs_are_compared_on_one_page(project: Render, tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for run_dir, lr in zip(runs, ("0.001", "0.002"), strict=True):
        train_on_ranks(project(logging="csv"), run_dir, "--max-steps", "5", "--lr", lr)
    command = [sys.executable, "-m", "ddp_project.runtime.report"]
    env = {**os.environ, "PYTHONPATH": str(project(logging="csv"))}
    output_of([*command, *runs], tmp_path, env)
    assert points(tmp_path / "report.html") == recorded(*runs)
    assert [run["options"]["lr"] for run in data_of(tmp_path / "report.html")] == [0.001, 0.002]
    refused = output_of([*command, "nowhere"], tmp_path, env, code=2)
    assert refused == "error: nowhere is no run with metrics.jsonl and config.json: name folders such as runs/*\n"
    refused = output_of([*command, *runs, "--serve", "--port", "99999"], tmp_path, env, code=2)
    assert refused == "error: --port is 99999: ports end at 65535\n"


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


def test_a_log_alone_is_drawn(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "old"
    run_dir.mkdir()
    (run_dir / "train.log").write_text(LOG)
    (run_dir / "config.json").write_text("{}")
    report = [sys.executable, "-m", "ddp_project.runtime.report", str(run_dir)]
    output_of(report, tmp_path, env={"PYTHONPATH": str(project())})
    [run] = data_of(tmp_path / "report.html")
    assert ("old", "train/loss", 7, 2.5) in points(tmp_path / "report.html")
    assert 8 not in run["series"][0]["step"]
    marks = [(event["event"], event["step"]) for event in run["events"]]
    assert marks == [("started", 0), ("resumed", 5), ("stopped", 7)]
    assert run["events"][1]["about"] == "world size 2, rank 0 on cuda:0"
    assert {path.name for path in run_dir.iterdir()} == {"train.log", "config.json"}, "it may go on, with version 1"


def test_tensorboard_records_come_in_the_order_of_recording(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    for step, name in ((3, "events.out.tfevents.1.host.9999"), (4, "events.out.tfevents.1.host.10000")):
        writer = SummaryWriter(folder)
        writer.add_scalar("train/loss", 1 / step, step)
        writer.close()
        (written,) = folder.glob("events.out.tfevents.[0-9][0-9]*")
        written.rename(folder / name)
    assert [step for step, _ in read_tensorboard(tmp_path)["train/loss"]] == [3, 4]
