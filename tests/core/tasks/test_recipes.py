"""Every recipe of RECIPES.md works: it touches the owner's files alone, is short, and a run of it can be stopped."""

import difflib
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from generator.render.project import read_files
from tests.conftest import Render
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.support.forked_runs import Program, run_all
from tests.support.projects.instructions import follow, read_recipes

OWNERS = {
    "ddp_project/task.py",
    "ddp_project/model.py",
    "ddp_project/data.py",
    "ddp_project/options.py",
    "tests/task.py",
}
# These change the task alone, and neither the network nor the data.
SHORT = {
    "Regression, where the lowest is best": 15,
    "A metric from a confusion matrix": 15,
    "Weight decay and a learning rate for each group of parameters": 15,
    "Another schedule": 15,
    "Freezing": 15,
    "Gradient checkpointing": 15,
    "A batch that is a dict, with two inputs": 30,
}
LONG = {"Tokens with padding", "A second optimizer: a GAN", "Images from a folder"}
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "warmup_steps": 2, "log_every": 3, "clip_norm": 1}


def changed_project(title: str, project: Path, place: Path) -> Path:
    shutil.copytree(project, place)
    follow(place, read_recipes(place)[title])
    for part, number in (("training", 119), ("validation", 10)):
        for i in range(number):
            file = place / "images" / part / str(i % 3) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 9), 80 * (i % 3) + i % 7, np.uint8)).save(file)
    return place


def added_lines(before: Path, after: Path) -> dict[str, int]:
    """How many lines are new in each file of the project."""
    old, new = read_files(before), read_files(after)
    files = [path for path in new if not path.startswith("images/") and new[path] != old.get(path)]
    added = {}
    for path in files:
        before_lines = old[path][1].decode().splitlines() if path in old else []
        delta = difflib.ndiff(before_lines, new[path][1].decode().splitlines())
        added[path] = sum(line.startswith("+ ") for line in delta)
    return added


def test_every_recipe_is_tried(project: Render) -> None:
    assert read_recipes(project()).keys() == {*SHORT, *LONG}


@pytest.mark.parametrize("title", [*SHORT, *sorted(LONG)])
def test_a_recipe_is_followed_trained_stopped_and_resumed(title: str, small: Render, tmp_path: Path) -> None:
    before = small(logging="csv")
    project = changed_project(title, before, tmp_path / "project")
    added = added_lines(before, project)
    assert added.keys() <= OWNERS
    assert sum(added.values()) <= SHORT.get(title, 100)
    whole = Program(project, tmp_path / "whole", OPTIONS)
    stopped = stopped_at(whole, 3, 7)
    run_all([[whole], stopped])
    assert_ends_like(whole, stopped[-1])
