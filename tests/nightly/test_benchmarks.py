"""The benchmarks measure what they say: templates of other sizes are sound, and their tables hold what was measured."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.check import STAGES, candidates, copy_repository, resize
from generator.answers.combinations import Combination, shaping_questions
from generator.render.workers import Workers, legal_combinations
from tools.docs.check import check_table, growth_table
from tools.docs.scale import agreement_table, checkpoint_table, evaluation_table, training_table


@pytest.mark.parametrize(("size", "expected"), [(50, 32), (480, 324), (5280, 5280)])
def test_a_template_gets_about_as_many_combinations_as_are_wanted(
    size: int, expected: int, legal: list[Combination], tmp_path: Path
) -> None:
    assert len(legal) == 2640, "choose other sizes here"
    clone = copy_repository(tmp_path / "clone")
    resize(clone, size, len(legal))
    with Workers() as workers:
        found = legal_combinations(clone, workers)
    assert len(found) == expected
    assert candidates(shaping_questions(clone)) >= expected


def test_what_is_measured_of_a_small_template_is_all_of_it(legal: list[Combination], tmp_path: Path) -> None:
    clone = copy_repository(tmp_path / "clone")
    resize(clone, 2, len(legal))
    done = subprocess.run(
        STAGES,
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["combinations"] == 2
    assert measured["files"] > 10
    assert min(measured[stage] for stage in ("enumerate", "render", "static")) > 0
    assert [*tmp_path.glob("ddp-template-*")] == []


STAGES_OF_CHECK = {
    "render": 8.0,
    "train": 40.0,
    "resume": 20.0,
    "format": 0.1,
    "lint": 0.1,
    "types": 32.0,
    "agree": 0.0,
}
COUNTS = {"combinations": 480, "cached": 384, "shared": 72}
CHECK = {"part": "check", "state": "cold", **COUNTS, "wall": 240.0, "peak_memory": 3 * 2**30, **STAGES_OF_CHECK}
ALONE = {"part": "growth", "combinations": 480, "candidates": 600, "files": 77, "peak_memory": 2**30}
ALONE |= {"enumerate": 6.0, "render": 9.6, "static": 19.2}


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table, without its head."""
    return [line.strip("|").split("|") for line in table.replace(" ", "").splitlines()[2:]]


def test_the_table_of_checks_tells_times_and_combinations_a_minute() -> None:
    known = {"part": "check", "state": "cached", "combinations": 480, "cached": 480, "shared": 0, "wall": 240.0}
    known |= {"peak_memory": 3 * 2**30, "render": 8.0}
    resized = {**CHECK, "state": "resized", "combinations": 32}
    rows = {first: rest for first, *rest in cells(check_table({"measurements": [CHECK, known, resized]}))}
    assert rows["ofthesenotknownbefore"] == ["96", "0"]
    assert rows["ofthesetrained,theothersaspartsofthem"] == ["24", "0"]
    assert rows["wholecheck"] == ["4min00s(120/min)", "4min00s(120/min)"]
    assert rows["trainandresume"] == ["1min00s(96/min)", "-"]  # of what was not known
    assert rows["types"] == ["32s(180/min)", "-"]
    assert rows["largestmemory"] == ["3.0GiB", "3.0GiB"]


def test_the_table_of_growth_leaves_empty_what_was_not_measured() -> None:
    larger = {**ALONE, "combinations": 960}
    measured, not_trained = cells(growth_table({"measurements": [CHECK, ALONE, larger]}))
    first = ["480", "600", "77", "6.0s(6,000/min)", "9.6s(3,000/min)", "19s(1,500/min)", "1.0GiB"]
    assert measured[: len(first)] == first
    assert "".join(not_trained[len(first) :]) == ""
    assert measured[len(first) :] == ["1min00s(96/min)", "4min00s(120/min)", "3.0GiB"]


def test_the_tables_of_scale_hold_what_was_measured() -> None:
    about = {"part": "training", "samples": 10**9, "ranks": 1, "place": "start"}
    start = {**about, "first_batch": 0.0123, "batch": 2e-6, "memory": 1_500_000}
    late = {**start, "place": "late", "first_batch": 0.0456}
    left_out = {"part": "torch", "samples": 10**9, "ranks": 1, "needed": 48 * 10**9, "free": 10**9}
    [row] = cells(training_table({"measurements": [start, late, left_out]}))
    assert row == ["1,000,000,000", "12ms", "46ms", "46ms", "2.0us", "1.5MB", "-", "about48GB"]
    one = {**start, "part": "evaluation"}
    few = {**one, "samples": 1000, "ranks": 1024}
    [evaluated] = cells(evaluation_table({"measurements": [one, few]}))
    assert evaluated == ["1,000,000,000", "12ms", "2.0us", "1.5MB"], "the last one is empty: not measured"
    numbers = {"size": 999, "save": 1.5, "memory_of_save": 0, "verify": 3e-7, "load": 0.1, "memory_of_load": 10}
    saved = {"part": "checkpoints", "network": "a", "ranks": 1024, **numbers}
    assert cells(checkpoint_table({"measurements": [saved]})) == [
        ["a", "1,024", "999B", "1.5s", "0B", "300ns", "100ms", "10B"]
    ]
    agreed = {"part": "agreement", "ranks": 8, "time": 0.001, "memory": 1000}
    assert cells(agreement_table({"measurements": [agreed]})) == [["8", "1.0ms", "1.0KB"]]
