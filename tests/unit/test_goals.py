"""The page of the speed says what was measured: which goals are met, and what was not measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.docs.check import NOT_MEASURED
from tools.docs.goals import goal_table
from tools.docs.pages import MAKERS, speed_tables


def contender(name: str, *rates: float, first: float = 3.0, memory: int = 1000) -> dict[str, Any]:
    measured = {"samples_per_second": rates, "to_first_step": [first], "peak_memory": [memory]}
    return {"workload": "small_cnn", "contender": name, **measured}


def verdicts(*contenders: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What is said of the small network, where only that was measured, of the frameworks at 100 samples per second."""
    frameworks = [contender(name, 100, 100, 100) for name in ("lightning_trainer", "hf_accelerate", "ignite_engine")]
    results: dict[str, dict[str, Any]] = {name: {} for name in MAKERS}
    results["speed"] = {"machine": {}, "measurements": [*frameworks, *contenders]}
    rows = [re.split(r" *\| *", line.strip("| ")) for line in goal_table(results).splitlines()]
    return {what.removeprefix("`small_cnn`: "): (measured, met) for what, _, measured, met in rows[2:]}


def test_goals_are_compared_within_rounds_and_with_the_loops_that_they_name() -> None:
    """The machine was slow in the second round: ratios of medians would be others."""
    generated = contender("generated", 140, 70, 134, first=3.1, memory=1060)
    found = verdicts(generated, contender("minimal", 100, 50, 100))
    assert found["samples/s, times minimal DDP loop"] == ("1.40", "yes")
    assert found["samples/s, times Lightning Trainer"] == ("1.34", "**no**")
    assert found["memory, relative to the minimal loop"] == ("1.06", "**no**")
    assert found["first step, after the minimal loop's"] == ("+0.10 s", "yes")
    assert found["first step, before every framework's"] == ("-0.10 s", "**no**")
    # One that is missed by less than a hundredth does not read as met.
    found = verdicts(contender("generated", *[134.7] * 3, memory=1053), contender("minimal", *[100] * 3))
    assert found["samples/s, times minimal DDP loop"] == ("1.347", "**no**")
    assert found["memory, relative to the minimal loop"] == ("1.053", "**no**")


@pytest.mark.parametrize("left", ["nothing", "speed.json"])
def test_what_was_not_measured_says_so(left: str, tmp_path: Path) -> None:
    if left == "speed.json":
        (tmp_path / left).write_text(json.dumps({"machine": {"frameworks": {"torch": "2.13.0"}}, "measurements": []}))
    parts = speed_tables(tmp_path)
    assert parts["small_cnn"] == parts["goals"] == parts["guards"] == NOT_MEASURED
    assert parts["versions"] == (NOT_MEASURED if left == "nothing" else "With torch 2.13.0.\n")
