"""report.html of a run: what it shows is what was recorded, over stops and kills, and of several runs on one page."""

import json
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from generator.check.train.records import read_csv
from tests.conftest import Package, Render
from tests.support.processes import output_of, wait_until
from tests.support.ranks import kill_after, newest_step, start_ranks, train_on_ranks

OPTIONS = ("--epochs", "40", "--save-every", "5", "--log-every", "4")
KINDS = {"epoch/validation_": " validation", "epoch/train_": " epoch", "train/": " training"}


Point = tuple[str, str, str, str]  # the metric, the run and what of it, the step and the value


def points(page: Path) -> list[Point]:
    found = []
    for chart in re.findall(r"<figure>.*?</figure>", page.read_text()):
        metric = re.findall(r"<b>(.*?)</b>", chart)[0]
        for text in re.findall(r"<circle[^>]*><title>(.*?)</title>", chart):
            curve, step, value = re.fullmatch(r"(.*), step (\S+): (\S+)", unescape(text)).groups()  # type: ignore[union-attr]
            found.append((metric, curve, step, value))
    return sorted(found)


def recorded(*run_dirs: Path) -> list[Point]:
    return sorted(point for run_dir in run_dirs for point in rows(run_dir) if point[0] != "epoch")


def rows(run_dir: Path) -> Iterator[Point]:
    for name, points in read_csv(run_dir).items():
        prefix = next((prefix for prefix in KINDS if name.startswith(prefix)), "")
        for step, value in points:
            shown = f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"
            yield name.removeprefix(prefix), run_dir.name + KINDS.get(prefix, ""), f"{step:,}", shown


def test_the_page_shows_what_was_recorded_over_a_kill_and_a_stop(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "a <b> & c"
    assert kill_after(start_ranks(project(logging="csv"), run_dir, *OPTIONS), run_dir, 30, 0.02)
    assert not (run_dir / "report.html").exists(), "a run of less than a minute has its page in the end"
    with open(run_dir / "metrics.jsonl", "a") as records:
        records.write('{"step": 31, "time": 1.0, "train/lo')  # as a kill may leave it
    first = min((run_dir / "checkpoints").glob("step-*.pt"))  # what was recorded after it is trained once more
    ranks = start_ranks(project(logging="csv"), run_dir, *OPTIONS, "--resume", str(first))
    wait_until(lambda: newest_step(run_dir) >= 60, told=ranks[0].output.read_text)
    os.kill(ranks[1].process.pid or 0, signal.SIGTERM)
    for rank in ranks:
        rank.ends_with(75, 60)
    assert points(run_dir / "report.html") == recorded(run_dir)
    train_on_ranks(project(logging="csv"), run_dir, *OPTIONS, "--resume", "--max-steps", "100", "--lr", "0.001")
    page = (run_dir / "report.html").read_text()
    assert points(run_dir / "report.html") == recorded(run_dir)
    log_text = (run_dir / "train.log").read_text()
    resumed = re.findall(r"resumed from .* step (\d+)$", log_text, re.MULTILINE)
    (stopped,) = re.findall(r"stopped after step (\d+);", log_text)
    marks = [f"resumed at step {resumed[0]}", f"stopped at step {stopped}", f"resumed at step {resumed[1]}"]
    assert ", ".join(marks) in page
    assert "<td>--lr</td><td>0.001</td>" in page
    assert "a &lt;b&gt; &amp; c" in page
    assert "<b> &" not in page


def test_what_is_not_finite_is_a_gap(package: Package, tmp_path: Path) -> None:
    values = [4.0, math.nan, 2.0, 3.0, math.inf, -math.inf, 1.0]
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step, value in enumerate(values):
            print(json.dumps({"step": step, "time": step, "train/loss": value, "train/x": math.nan}), file=file)
    (tmp_path / "config.json").write_text("{}")
    package("runtime.report").write_page([tmp_path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    (path,) = re.findall(r'<path d="(.*?)"', page)
    assert re.sub(r"[\d.,]+", "", path) == "MMLM"
    assert [value for *_, value in points(tmp_path / "report.html")] == ["4", "2", "3", "1"]
    assert re.findall(r'dy="4">(.*?)<', page) == ["1", "2.5", "4"], "the scale"
    assert not re.search(r"\b(nan|inf)\b", page)


def test_runs_are_compared_on_one_page(project: Render, tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for run_dir, lr in zip(runs, ("0.001", "0.002"), strict=True):
        train_on_ranks(project(logging="csv"), run_dir, "--max-steps", "5", "--lr", lr)
    command = [sys.executable, "-m", "ddp_project.runtime.report"]
    env = {**os.environ, "PYTHONPATH": str(project(logging="csv"))}
    output_of([*command, *runs], tmp_path, env)
    assert points(tmp_path / "report.html") == recorded(*runs)
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r"<tr class=other><td>(.*?)</td>(.*?)</tr>", text)[0] == ("--lr", "<td>0.001</td><td>0.002</td>")
    refused = output_of([*command, "nowhere"], tmp_path, env, code=2)
    assert refused == "error: nowhere is no run with metrics.jsonl and config.json: name folders such as runs/*\n"
