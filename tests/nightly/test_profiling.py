"""--profile writes a trace that tools can read: the steps of rank 0, with what each is made of."""

import gzip
import json
from collections import Counter
from pathlib import Path

from tests.conftest import Render
from tests.support.training import checkpoint, differences, train

STEPS = 5


def test_a_trace_holds_five_steps_and_changes_nothing(project: Render, tmp_path: Path) -> None:
    traced, plain = tmp_path / "traced", tmp_path / "plain"
    output = train(project(), traced, "--epochs", "1", "--profile")
    assert output.count("trace.json.gz") == 1
    with gzip.open(traced / "trace.json.gz", "rt") as file:
        names = Counter(event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X")
    assert sum(names[f"ProfilerStep#{step}"] for step in range(11, 11 + STEPS)) == STEPS
    assert names["DistributedDataParallel.forward"] == STEPS
    assert names["Optimizer.step#AdamW.step"] == STEPS
    assert names["gloo:all_reduce"] >= STEPS
    train(project(), plain, "--epochs", "1")
    assert [*plain.glob("trace*")] == []
    one, other = checkpoint(traced), checkpoint(plain)
    del one["config"], other["config"]
    assert differences(one, other) == []
