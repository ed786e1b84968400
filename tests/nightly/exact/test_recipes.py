"""A run of each recipe of RECIPES.md can be stopped, and ends on the same bits."""

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from generator.check.train.samples import samples_of
from tests.conftest import Render
from tests.core.exact.test_resume import assert_stops_in_turn_change_nothing
from tests.core.tasks.test_recipes import (
    ALL,
    PLATEAU,
    SCHEDULER,
    STREAMED,
    TABLES,
    WITH_STATE,
    changed_project,
    each_recipe,
)
from tests.support.forked_runs import Program, run_all
from tests.support.projects.instructions import ALTERNATING

CONTRASTIVE = "A contrastive loss over all ranks"
DISTILLATION = "Distillation from an export"
EACH_FILE = "An evaluation of each file"
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "warmup_steps": 2, "log_every": 3, "clip_norm": 1}
SMALL: dict[str, dict[str, object]] = {
    "images": {"image_size": 16, "width": 4},
    "language": {"width": 32, "data": textwrap.__file__},
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return samples_of({*ALL}, tmp_path_factory.mktemp("samples"))


@each_recipe
def test_a_recipe_is_trained_stopped_and_resumed(
    task: str, title: str, project: Render, small: Render, samples: Mapping[str, Path], tmp_path: Path
) -> None:
    before = small(logging="csv") if task == "digits" else project(task=task, logging="csv")
    changed = changed_project(title, before, tmp_path / "project")
    options = OPTIONS | SMALL.get(task, {}) | ({"accum_steps": 1} if title == CONTRASTIVE else {})
    options |= {"data": samples[task]} if task == "images" else {}
    # Each dataset of Hugging Face needs shared memory, which ranks that may write no file do not get.
    options |= {"steps": 10, "workers": 0} if title in STREAMED else {}
    options |= {"data": changed / "tables" / TABLES[title]} if title in TABLES else {}
    options |= {"teacher": export_of(Program(before, tmp_path / "teacher", options))} if title == DISTILLATION else {}
    options |= {"validation": textwrap.__file__} if title == EACH_FILE else {}
    assert_stops_in_turn_change_nothing(Program(changed, tmp_path / "whole", options), 3, 7)


def export_of(program: Program) -> Path:
    run_all([[program]])
    subprocess.run([sys.executable, "export.py", program.run_dir], cwd=program.project, check=True)
    return program.run_dir / "export"


@pytest.mark.parametrize(
    ("title", "answers", "options"),
    [
        *((title, {"task": "language"}, {}) for title in WITH_STATE),
        (PLATEAU, {"amp": "torch"}, {"precision": "fp16"}),
        (SCHEDULER, {"amp": "torch"}, {"precision": "fp16"}),
        (ALTERNATING, {"amp": "torch"}, {"precision": "fp16"}),
    ],
    ids=str,
)
def test_edits_of_train_py_hold_for_other_tasks_and_precisions(
    title: str, answers: dict[str, str], options: dict[str, str], small: Render, tmp_path: Path
) -> None:
    project = changed_project(title, small(logging="csv", **answers), tmp_path / "project")
    assert_stops_in_turn_change_nothing(Program(project, tmp_path / "whole", OPTIONS | options), 3, 7)
