"""--profile writes a trace that tools can read: the steps of rank 0, with what each is made of."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import Render
from tests.support.training import checkpoint, differences, train

STEPS = 5


def events(run_dir: Path) -> list[dict[str, Any]]:
    """What the trace says."""
    with gzip.open(run_dir / "trace.json.gz", "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def test_a_trace_holds_five_steps_and_changes_nothing(project: Render, tmp_path: Path) -> None:
    traced, plain = tmp_path / "traced", tmp_path / "plain"
    output = train(project(), traced, "--epochs", "1", "--profile")
    assert output.count("trace.json.gz") == 1
    names = Counter(event["name"] for event in events(traced) if event.get("ph") == "X")
    assert sum(names[f"ProfilerStep#{step}"] for step in range(11, 11 + STEPS)) == STEPS
    assert names["DistributedDataParallel.forward"] == STEPS
    assert names["Optimizer.step#AdamW.step"] == STEPS
    assert names["gloo:all_reduce"] >= STEPS
    train(project(), plain, "--epochs", "1")
    assert [*plain.glob("trace*")] == []
    one, other = checkpoint(traced), checkpoint(plain)
    del one["config"], other["config"]
    assert differences(one, other) == []


def test_a_run_that_is_too_short_says_so(project: Render, tmp_path: Path) -> None:
    output = train(project(), tmp_path / "run", "--max-steps", "3", "--profile", launcher="alone")
    assert "no trace: --profile takes 16 steps" in output
    assert not (tmp_path / "run" / "trace.json.gz").exists()


def test_a_run_that_ends_as_the_trace_begins_says_one_thing(project: Render, tmp_path: Path) -> None:
    output = train(project(), tmp_path / "run", "--max-steps", "11", "--profile", launcher="alone")
    assert (tmp_path / "run" / "trace.json.gz").exists()
    assert "no trace" not in output


def test_a_run_that_ends_within_the_trace_leaves_what_there_is(project: Render, tmp_path: Path) -> None:
    output = train(project(), tmp_path / "run", "--max-steps", "14", "--profile", launcher="alone")
    assert "trace.json.gz" in output
    names = Counter(event["name"] for event in events(tmp_path / "run"))
    assert 2 <= names["Optimizer.step#AdamW.step"] < STEPS
