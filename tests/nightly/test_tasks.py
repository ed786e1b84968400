"""Every task trains to what it promises, in every combination and with every launcher, and its export predicts."""

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generator.answers.combinations import Combination
from generator.check.train.samples import samples_of
from tests.conftest import Measured, Render
from tests.core.test_combinations import OF_ONE_MACHINE, assert_passed
from tests.support.cli import check_report
from tests.support.processes import output_of
from tests.support.training import assert_same_weights, train, whole_checkpoint

# What is promised of the best evaluation of a run: a metric, and its smallest and its largest value.
PROMISED = {
    "digits": ("accuracy", 0.97, 1.0),
    "images": ("accuracy", 0.95, 1.0),
    "language": ("bits_per_token", 1.0, 2.9),
    "tabular": ("r2", 0.45, 1.0),
}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("task", PROMISED)
def test_a_task_trains_to_what_it_promises(task: str, precision: str, own_project: Render, tmp_path: Path) -> None:
    metric, smallest, largest = PROMISED[task]
    train(own_project(task=task), tmp_path / "run", "--precision", precision, timeout=600)
    assert smallest <= json.loads((tmp_path / "run" / "result.json").read_text())["best"][metric] <= largest


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def checked(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """What a check says of each task on each launcher, with the folder that it has kept, with project and run."""
    answers = ["backend=auto", "amp=none", "sync_bn=false", "logging=csv", f"parallel={request.param}"]
    with tempfile.TemporaryDirectory() as folder:  # a short path: Slurm's sockets lie below
        place, options = Path(folder), ["--launchers", "real", "--keep"]
        answers += [f"launcher={','.join(OF_ONE_MACHINE)}"]
        found = check_report(place / "check.json", *answers, *options, code=None, timeout=1800, TMPDIR=folder)
        for each in found:
            each["folder"] = next(place.glob(f"*/{each['name']}"))
        yield {(each["answers"]["task"], each["answers"]["launcher"]): each for each in found}


def predictions(task: str, folder: Path) -> list[dict[str, Any]]:
    """Export the best checkpoint of a run, and return what predict.py says of some files of its task."""
    project, run_dir = folder / "project", folder / "cold"
    samples = samples_of({task}, folder / "samples").get(task, project)
    files: dict[str, list[Path]] = {
        "digits": [project / "ddp_project" / "digits.npz"],
        "images": sorted(samples.glob("val/*/*")),
        "language": [project / "train.py"],
        "tabular": [samples],
    }
    output_of([sys.executable, "export.py", run_dir], project, os.environ, timeout=60)
    said = folder / "predictions.jsonl"
    command: list[str | Path] = [sys.executable, "predict.py", run_dir / "export", *files[task], "--to", said]
    output_of(command, project, os.environ, timeout=60)
    found = [json.loads(line) for line in said.read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != "file"} for each in found]


@pytest.mark.parametrize("launcher", OF_ONE_MACHINE)
@pytest.mark.parametrize("task", PROMISED)
def test_every_launcher_trains_stops_and_resumes_a_task_whose_export_predicts(
    task: str, launcher: str, checked: dict[tuple[str, str], dict[str, Any]]
) -> None:
    result = checked[task, launcher]
    assert_passed(result, launcher)
    if launcher == "spawn":
        assert predictions(task, result["folder"])
    else:
        spawned = checked[task, "spawn"]
        assert_same_weights(whole_checkpoint(result["folder"] / "cold"), whole_checkpoint(spawned["folder"] / "cold"))


def test_every_combination_passes_and_each_task_ends_on_four_numbers(
    tmp_path: Path, legal: list[Combination], measured: Measured
) -> None:
    combinations = check_report(tmp_path / "check.json", timeout=1800)
    assert {each["name"] for each in combinations} == {each.name for each in legal}
    numbers: dict[tuple[str, str, bool], set[str]] = defaultdict(set)
    for each in combinations:
        answers = each["answers"]
        numbers[answers["task"], answers["parallel"], answers["amp"] == "torch"].add(each["weights"])
    assert len(numbers) == 4 * len(PROMISED)
    assert all(len(weights) == 1 for weights in numbers.values()), "of ddp and of fsdp, in float32 and in float16"
    measured(
        "launchers", "projects that end on four numbers a task: ddp and fsdp, float32 and float16", len(combinations)
    )
