"""The page of the speed says what was measured: which goals are met, and what was not measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.docs.check import NOT_MEASURED
from tools.docs.goals import goal_table
from tools.docs.pages import MAKERS, speed_tables

EMPTY: dict[str, dict[str, Any]] = {name: {} for name in MAKERS}


def results(measurements: list[dict[str, Any]], **machine: Any) -> dict[str, Any]:
    return {"machine": machine, "measurements": measurements}


def contender(rates: list[float], first: float = 3.0, memory: int = 100) -> dict[str, Any]:
    """What was measured of one; the ratio is to 100 samples per second."""
    return {"samples_per_second": rates, "to_first_step": [first], "peak_memory": [memory]}


def verdicts(table: str) -> dict[str, tuple[str, str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {what: (measured, met) for what, _, measured, met in rows}


def small_cnn(**contenders: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Records in which only the small network was measured, of the frameworks at 100 samples per second."""
    frameworks = {name: contender([100.0] * 3) for name in ("lightning_trainer", "hf_accelerate", "ignite_engine")}
    measured = [
        {"workload": "small_cnn", "contender": name, **found} for name, found in (frameworks | contenders).items()
    ]
    return EMPTY | {"speed": results(measured)}


def test_goals_are_compared_within_rounds_and_with_the_loops_that_they_name() -> None:
    """The machine was slow in the second round: ratios of medians would be others."""
    minimal, generated = contender([100.0, 50.0, 100.0]), contender([140.0, 70.0, 134.0], first=3.1, memory=106)
    found = verdicts(goal_table(small_cnn(generated=generated, minimal=minimal)))
    assert found["`small_cnn`: samples/s, times minimal DDP loop"] == ("1.40", "yes")
    assert found["`small_cnn`: samples/s, times Lightning Trainer"] == ("1.34", "**no**")
    assert found["`small_cnn`: memory, times that of the minimal loop"] == ("1.06", "**no**")
    assert found["`small_cnn`: first step, after that of the minimal loop"] == ("+0.10 s", "yes")
    assert found["`small_cnn`: first step, before that of every framework"] == ("-0.10 s", "**no**")


def test_a_goal_that_is_missed_by_less_than_a_hundredth_does_not_read_as_met() -> None:
    minimal = contender([100.0] * 3, memory=1000)
    found = verdicts(goal_table(small_cnn(generated=contender([134.7] * 3, memory=1053), minimal=minimal)))
    assert found["`small_cnn`: samples/s, times minimal DDP loop"] == ("1.347", "**no**")
    assert found["`small_cnn`: memory, times that of the minimal loop"] == ("1.053", "**no**")


@pytest.mark.parametrize("left", ["nothing", "speed.json"])
def test_what_was_not_measured_says_so(left: str, tmp_path: Path) -> None:
    """Also one of the networks alone."""
    if left == "speed.json":
        (tmp_path / left).write_text(json.dumps(results([], frameworks={"torch": "2.13.0"})))
    parts = speed_tables(tmp_path)
    assert parts["small_cnn"] == parts["goals"] == parts["guards"] == NOT_MEASURED
    assert parts["versions"] == (NOT_MEASURED if left == "nothing" else "With torch 2.13.0.\n")
