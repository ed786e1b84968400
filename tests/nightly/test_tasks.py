"""Every task that the template offers trains to what it promises, on two processes and with its default options."""

import json
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.launching import train

# What is promised of the best evaluation of a run: a metric, and its smallest and its largest value.
PROMISED = {
    "digits": ("accuracy", 0.97, 1.0),
    "images": ("accuracy", 0.95, 1.0),
    "language": ("bits_per_token", 1.0, 2.9),
    "tabular": ("r2", 0.45, 1.0),
}


@pytest.mark.parametrize("task", PROMISED)
def test_a_task_trains_to_what_it_promises(task: str, own_project: Render, tmp_path: Path) -> None:
    metric, smallest, largest = PROMISED[task]
    train(own_project(task=task), tmp_path / "run", timeout=600)
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert smallest <= best[metric] <= largest
