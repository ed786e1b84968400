"""Edits of train.py in RECIPES.md: rates are PyTorch's, own numbers are recorded, and callbacks change no result."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from tests.conftest import Render
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.core.tasks.test_recipes import CALLBACK, NUMBER, PLATEAU, SCHEDULER, changed_project
from tests.support.forked_runs import Program, metrics, run_all, state
from tests.support.training import differences
from tools.rewriting import Rewrite, extend

# An epoch has five steps.
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 3, "warmup_steps": 2, "log_every": 1, "lr": 0.01}
Recipe = Callable[[str], Path]


@pytest.fixture
def after(small: Render, tmp_path: Path) -> Recipe:
    """Return what makes the project after a recipe."""
    return lambda title: changed_project(title, small(logging="csv"), tmp_path / "project")


def parameter() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(1))]


def test_rates_are_those_of_a_plateau_that_gets_the_same_metrics(after: Recipe, tmp_path: Path) -> None:
    """Over stops, too, at which a run evaluates once more."""
    project = after(PLATEAU)
    Rewrite("patience=2", "patience=0").apply(project / "train.py")
    whole = Program(project, tmp_path / "whole", OPTIONS | {"eval_every": "2steps"})
    stopped = stopped_at(whole, 3, 4, 9)
    run_all([[whole], stopped])
    assert_ends_like(whole, stopped[-1])
    found = metrics(whole.run_dir)
    evaluated = dict(found["epoch/validation_accuracy"])
    assert [*evaluated] == [2, 4, 6, 8, 10, 12, 14, 15], "each second step, and the end of the last epoch"
    plain = SGD(parameter(), lr=OPTIONS["lr"])
    plateau = ReduceLROnPlateau(plain, "max", factor=0.5, patience=0)
    expected = []
    for step in range(15):
        expected.append((step + 1, plain.param_groups[0]["lr"] * min(1.0, (step + 1) / 2)))
        if step + 1 in evaluated:
            plateau.step(evaluated[step + 1])
    assert len({rate for _, rate in expected[2:]}) > 2, "the rate falls more than once"
    assert dict(found["lr"]) == pytest.approx(dict(expected), rel=1e-12)


def test_rates_fall_until_the_end_if_a_resume_changes_the_batch_size(small: Render, tmp_path: Path) -> None:
    """Seven steps of five in an epoch, then five that are left of the second epoch and nine of the third."""
    begin = Program(small(logging="csv"), tmp_path / "run", OPTIONS | {"max_steps": 7})
    smaller = OPTIONS | {"global_batch_size": 12, "accum_steps": 1, "resume": None}
    run_all([[begin, *(replace(begin, options=smaller | {"max_steps": stop}) for stop in (9, 15, 99))]])
    found = dict(metrics(begin.run_dir)["lr"])
    assert [*found] == [*range(1, 22)]
    for step in range(7, 21):
        share = (step - 2) / (21 - 2)
        assert found[step + 1] == pytest.approx(OPTIONS["lr"] * (1 + math.cos(math.pi * share)) / 2, rel=1e-6)


def test_rates_are_those_of_pytorchs_scheduler(after: Recipe, tmp_path: Path) -> None:
    program = Program(after(SCHEDULER), tmp_path / "run", OPTIONS)
    run_all([[program]])
    plain = AdamW(parameter())
    cycle = OneCycleLR(plain, max_lr=OPTIONS["lr"], total_steps=15)
    expected = {}
    for step in range(15):
        expected[step + 1] = float(cycle.get_last_lr()[0])
        plain.step()
        cycle.step()
    assert dict(metrics(program.run_dir)["lr"]) == pytest.approx(expected, rel=1e-12)
    [group] = state(program.run_dir)["optimizer"]["param_groups"]
    assert group["betas"] == plain.param_groups[0]["betas"], "which the scheduler changes, too"


# Appended to task.py: one parameter has a rate of its own.
GROUPS = """

def build_optimizer(model: Any, config: Config, build: Any = build_optimizer) -> Any:
    optimizer = build(model, config)
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr_scale": 0.25})
    return optimizer
"""


@pytest.mark.parametrize("first", [1.0, 0.25])
def test_the_rate_of_each_group_is_recorded(first: float, small: Render, tmp_path: Path) -> None:
    """Also if all groups have the same rate, which is not that of the run."""
    project = small(logging="csv")
    scaled = GROUPS.replace(
        "    return optimizer", f"    optimizer.param_groups[0]['lr_scale'] = {first}\n    return optimizer"
    )
    extend(project / "ddp_project" / "task.py", scaled)
    program = Program(project, tmp_path / "run", OPTIONS)
    run_all([[program]])
    found = metrics(program.run_dir)
    assert len(found["lr"]) == 15
    assert found["lr/group_0"] == [(step, first * rate) for step, rate in found["lr"]]
    assert found["lr/group_1"] == [(step, 0.25 * rate) for step, rate in found["lr"]]


def test_a_number_of_the_owner_is_recorded(after: Recipe, tmp_path: Path) -> None:
    """The gradient norm of a layer; here the layer is the whole model, whose norm is recorded anyway."""
    project = after(NUMBER)
    Rewrite('run.model.get_submodule("features")', "run.model", "train_step").apply(project / "train.py")
    program = Program(project, tmp_path / "run", OPTIONS | {"clip_norm": 0.1})
    run_all([[program]])
    found = metrics(program.run_dir)
    assert [*dict(found["layer_norm"])] == [*range(1, 16)]
    assert dict(found["layer_norm"]) == pytest.approx(dict(found["grad_norm"]))


def test_a_callback_comes_on_all_ranks_at_once_and_changes_nothing(
    after: Recipe, small: Render, tmp_path: Path
) -> None:
    """Also if the minutes are over on the clock of one rank alone."""
    project, options = after(CALLBACK), OPTIONS | {"log_every": 3}
    Rewrite("task.Timer(minutes=10)", "task.Timer(minutes=10 * (env.rank == 0))").apply(project / "train.py")
    telling = Rewrite(
        "if dist.get_rank() == 0: $$$A", 'print("called after", step, flush=True)\n{}', "every_few_minutes"
    )
    telling.apply(project / "ddp_project" / "task.py")
    with_it, without = Program(project, tmp_path / "with", options), Program(
        small(logging="csv"), tmp_path / "w", options
    )
    [ended], _ = run_all([[with_it], [without]])
    steps = [3, 5, 6, 9, 10, 12, 15]  # with a record
    for output in ended.output:
        assert [*map(int, re.findall(r"^called after (\d+)$", output, re.MULTILINE))] == steps
    assert sorted(file.name for file in (project / "copies" / "with").iterdir()) == [
        f"metrics-{step:08d}.jsonl" for step in steps
    ]
    assert differences(state(with_it.run_dir), state(without.run_dir)) == []
    assert metrics(with_it.run_dir) == metrics(without.run_dir)
