"""The page of the speed says what was measured: which goals are met, and what was not measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.docs.check import NOT_MEASURED
from tools.docs.goals import goal_table
from tools.docs.pages import MAKERS, speed_tables
from tools.docs.starting import SAME_FILES

EMPTY: dict[str, dict[str, Any]] = {name: {} for name in MAKERS}
COPYING = [
    {"template": SAME_FILES, "copy": [1.0, 2.0, 4.0], "update": [1.0, 1.0, 1.0]},
    {"template": "this template", "copy": [1.2, 2.4, 12.0], "update": [2.0, 2.0, 1.0]},
]
SITE = {
    "first view": [500.0, 900.0, 3000.0],
    "a fixed piece of work": [100.0, 100.0, 300.0],
    "an answer changes": [310.0, 310.0, 310.0],
}


def results(measurements: list[dict[str, Any]], **machine: Any) -> dict[str, Any]:
    return {"machine": machine, "measurements": measurements}


def contender(rates: list[float], first: float = 3.0, memory: int = 100) -> dict[str, Any]:
    """What was measured of one; the ratio is to 100 samples per second."""
    return {"samples_per_second": rates, "to_first_step": [first], "peak_memory": [memory]}


def records_of(workload: str, **contenders: dict[str, Any]) -> dict[str, dict[str, Any]]:
    measured = [{"workload": workload, "contender": name, **numbers} for name, numbers in contenders.items()]
    return EMPTY | {"speed": results(measured)}


def small_cnn(generated: dict[str, Any], **others: dict[str, Any]) -> dict[str, dict[str, Any]]:
    contenders = {name: contender([100.0] * 3) for name in ("minimal", "lightning_trainer", "hf_accelerate")}
    contenders |= {"ignite_engine": contender([100.0] * 3), "generated": generated, **others}
    return records_of("small_cnn", **contenders)


def verdicts(table: str) -> dict[str, tuple[str, str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {what: (measured, met) for what, _, measured, met in rows}


def test_goals_are_compared_within_rounds_and_with_the_loops_that_they_name() -> None:
    """The machine was slow in the second round: ratios of medians would be others."""
    minimal, generated = contender([100.0, 50.0, 100.0]), contender([140.0, 70.0, 134.0], first=3.1, memory=106)
    found = verdicts(goal_table(small_cnn(generated, minimal=minimal)))
    assert found["`small_cnn`: samples/s, times minimal DDP loop"] == ("1.40", "yes")
    assert found["`small_cnn`: samples/s, times Lightning Trainer"] == ("1.34", "**no**")
    assert found["`small_cnn`: memory, times that of the minimal loop"] == ("1.06", "**no**")
    assert found["`small_cnn`: first step, after that of the minimal loop"] == ("+0.10 s", "yes")
    assert found["`small_cnn`: first step, before that of every framework"] == ("-0.10 s", "**no**")


def test_a_goal_that_is_missed_by_less_than_a_hundredth_does_not_read_as_met() -> None:
    minimal = contender([100.0] * 3, memory=1000)
    found = verdicts(goal_table(small_cnn(contender([134.7] * 3, memory=1053), minimal=minimal)))
    assert found["`small_cnn`: samples/s, times minimal DDP loop"] == ("1.347", "**no**")
    assert found["`small_cnn`: memory, times that of the minimal loop"] == ("1.053", "**no**")


def test_every_network_is_compared_with_the_fastest_framework() -> None:
    contenders = {
        "minimal": contender([110.0]),
        "generated": contender([104.0]),
        "hf_accelerate": contender([102.0]),
        "ignite_engine_tuned": contender([106.0]),
    }
    found = verdicts(goal_table(records_of("resnet", **contenders)))
    [what] = (what for what in found if "samples/s" in what)
    assert "the fastest framework (PyTorch-Ignite" in what
    assert found[what] == ("0.98", "**no**")


def test_guards_starts_and_copies_have_goals_too() -> None:
    shares = {"signs of life": 0.001, "a progress bar on a screen": 0.002, "the log": 0.016, "the log and csv": 0.018}
    about = {"part": "guards", "workload": "small_cnn"}
    guards = [{**about, "guard": name, "share": [share]} for name, share in shares.items()]
    seconds = {"`--help`": 0.31, "an option that does not exist": 0.2}
    starting = [{"edit": "as generated", "command": what, "seconds": [taken]} for what, taken in seconds.items()]
    measured: dict[str, dict[str, Any]] = {
        "ablation": results(guards),
        "starting": results(starting),
        "copying": results(COPYING),
        "site": results([{"what": what, "milliseconds": taken} for what, taken in SITE.items()]),
    }
    assert verdicts(goal_table(EMPTY | measured)) == {
        "`small_cnn`: the guards, a bar on a screen and the log, of a step's time": ("1.9%", "yes"),
        "`small_cnn`: the guards, a bar on a screen and the log and csv, of a step's time": ("2.1%", "**no**"),
        "`--help`": ("0.31 s", "**no**"),
        "an option that does not exist": ("0.20 s", "yes"),
        "`copier copy`, times that of the same files without questions": ("1.20", "yes"),
        "`copier update`, times that of the same files without questions": ("2.00", "**no**"),
        "preview: first view": ("0.90 s", "yes"),
        "preview: an answer changes": ("0.31 s", "**no**"),
    }


@pytest.mark.parametrize("left", ["nothing", "speed.json"])
def test_what_was_not_measured_says_so(left: str, tmp_path: Path) -> None:
    """Also one of the networks alone."""
    if left == "speed.json":
        (tmp_path / left).write_text(json.dumps(results([], frameworks={"torch": "2.13.0"})))
    parts = speed_tables(tmp_path)
    assert parts["small_cnn"] == parts["goals"] == parts["guards"] == NOT_MEASURED
    assert parts["versions"] == (NOT_MEASURED if left == "nothing" else "With torch 2.13.0.\n")
