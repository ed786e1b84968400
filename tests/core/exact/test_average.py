"""--ema-decay: the average is that of a plain loop, it is evaluated, no bad step counts, and training is without it."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.conftest import Measured, Package, Render
from tests.core.exact.test_processes import OPTIONS, recipe
from tests.support import reference
from tests.support.forked_runs import AS_ON_A_GPU, Program, metrics, relative_difference, run_all, state
from tests.support.ranks import assert_same_state
from tests.support.training import checkpoint, differences, whole_checkpoint
from tools.rewriting import Rewrite, extend

DECAY = 0.5  # reached after 8 steps
AVERAGED = OPTIONS | {"accum_steps": 3, "ema_decay": DECAY}
IN_EPOCH, END = 5, 15  # steps


def test_two_processes_evaluate_and_save_the_average_of_a_plain_loop(
    plain_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    run = Program(plain_project, tmp_path / "run", AVERAGED)
    without = Program(plain_project, tmp_path / "without", AVERAGED | {"ema_decay": 0})
    run_all([[run], [without]])
    average, after_epochs = reference.Average(reference.model().state_dict(), DECAY), []

    def follow(weights: Mapping[str, Tensor]) -> None:
        average.follow(weights)
        if average.steps % IN_EPOCH == 0:
            network = reference.model()
            network.load_state_dict(average.weights)
            after_epochs.append(reference.evaluate(network, range(10)))

    reference.train(recipe(3), orders, after_step=follow)
    difference = relative_difference(checkpoint(run.run_dir)["update"]["average"], average.weights)
    measured("average", "largest relative difference of an averaged weight to a plain loop", difference)
    assert difference <= 1e-5

    evaluated, of_weights = (metrics(program.run_dir) for program in (run, without))
    losses = [loss for _, loss in evaluated["epoch/validation_loss"]]
    assert losses == pytest.approx([each["loss"] for each in after_epochs], rel=1e-5)
    assert losses != pytest.approx([loss for _, loss in of_weights["epoch/validation_loss"]], rel=1e-3)
    assert evaluated["train/loss"] == of_weights["train/loss"]
    one, other = state(run.run_dir), state(without.run_dir)
    assert_same_state(one, other, "model", "optimizer", "ranks")
    assert "average" not in other["update"]


# Appended to data.py: a training sample that gives gradients of NaN.
SPOILED = """
load_well = load_data


def load_data(config: object) -> tuple[Dataset[Any], Dataset[Any]]:
    training, validation = load_well(config)
    training.dataset.tensors[0][SAMPLE] = float("nan")
    return training, validation
"""
# A network of tied weights, and of some that are not trained.
TIED = """
from torch import nn


def build_model(config: object) -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[2].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    return model
"""
TWO = "Optimizers(AdamW(model[0].parameters()), AdamW([model[2].bias, *model[4].parameters()]))"
VARIANTS: list[tuple[dict[str, object], dict[str, Any], bool]] = [
    # answers, options, and whether decisions are taken on the device
    ({}, {}, False),
    ({}, {}, True),
    ({"amp": "torch"}, {"precision": "fp16"}, False),
    ({"amp": "torch"}, {"precision": "fp16"}, True),
    ({"parallel": "fsdp"}, {}, False),
    ({"parallel": "fsdp"}, {}, True),
]


@pytest.fixture
def spoiled(project: Render, orders: list[list[int]], tmp_path: Path) -> Callable[..., Program]:
    """Return a program of which a step in the first epoch, and one in some others, has gradients of NaN."""

    def get(answers: dict[str, Any], options: dict[str, Any], on_device: bool, model: str = reference.MODEL) -> Program:
        place = shutil.copytree(project(logging="csv", **answers), tmp_path / "project")
        sample = next(sample for sample in orders[0][2 * 24 : 3 * 24] if sample >= 10)
        (place / "ddp_project" / "data.py").write_text(reference.DATA + SPOILED.replace("SAMPLE", str(sample)))
        (place / "ddp_project" / "model.py").write_text(model)
        if on_device:
            AS_ON_A_GPU.apply(place / "ddp_project" / "runtime" / "optimizer_step.py")
        return Program(place, tmp_path / "run", AVERAGED | options | {"save_every": 1, "keep": 99})

    return get


def assert_no_bad_step_is_averaged(run_dir: Path) -> dict[str, Any]:
    """Compute each average from the one before and the weights of a checkpoint. Returns the last checkpoint."""
    steps = [whole_checkpoint(run_dir, f"step-{step:08d}.pt") for step in range(1, END + 1)]
    average, skipped_steps = reference.Average(steps[0]["update"]["average"], DECAY, steps=1), []
    for number, (before, after) in enumerate(pairwise(steps), start=2):
        if differences(before["model"], after["model"]):
            average.follow(after["model"])
        else:
            skipped_steps.append(number)
            assert differences(before["update"]["average"], after["update"]["average"]) == []
        assert relative_difference(after["update"]["average"], average.weights) <= 1e-5, number
    assert 3 in skipped_steps
    assert len(skipped_steps) <= reference.EPOCHS
    assert steps[-1]["update"]["averaged_steps"] == average.steps == END - len(skipped_steps)
    return steps[-1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_that_is_left_out_leaves_the_average_as_it_was(variant: Any, spoiled: Callable[..., Program]) -> None:
    program = spoiled(*variant)
    run_all([[program]])
    assert_no_bad_step_is_averaged(program.run_dir)


@pytest.mark.parametrize(
    ("answers", "options"), [({}, {"find_unused_parameters": None}), ({"parallel": "fsdp"}, {})], ids=["ddp", "fsdp"]
)
def test_tied_and_frozen_weights_and_several_optimizers_are_averaged(
    answers: dict[str, Any], options: dict[str, Any], spoiled: Callable[..., Program]
) -> None:
    program = spoiled(answers, options, False, TIED)
    task = program.project / "ddp_project" / "task.py"
    extend(task, imports="from .runtime.optimizer_step import Optimizers\n\n")
    Rewrite("AdamW($$$A)", TWO, "build_optimizer").apply(task)
    run_all([[program]])
    last = assert_no_bad_step_is_averaged(program.run_dir)
    assert last["update"]["average"].keys() == last["model"].keys() - {"2.bias"}


def test_a_resumed_run_may_begin_or_end_it(plain_project: Path, tmp_path: Path) -> None:
    first = Program(plain_project, tmp_path / "run", OPTIONS | {"max_steps": 4, "save_every": 1, "keep": 99})
    begins = replace(first, options=first.options | {"max_steps": 6, "ema_decay": DECAY, "resume": None})
    ends = replace(first, options=first.options | {"max_steps": 7, "resume": None})
    run_all([[first, begins, ends]])
    saved = {step: checkpoint(first.run_dir, f"step-{step:08d}.pt") for step in range(4, 8)}
    average = reference.Average(saved[4]["model"], DECAY)
    for step in (5, 6):
        average.follow(saved[step]["model"])
        assert relative_difference(saved[step]["update"]["average"], average.weights) <= 1e-5
    assert [step for step in saved if "average" in saved[step]["update"]] == [5, 6]
    log = (first.run_dir / "train.log").read_text()
    assert f"--ema-decay {DECAY} (was 0.0)" in log
    assert f"--ema-decay 0.0 (was {DECAY})" in log


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_needs_the_memory_of_a_piece_and_comes_back_bit_for_bit(
    dtype: torch.dtype, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of less precision are kept while the average is in their place; nothing else is copied as a whole."""
    step = package("runtime.optimizer_step")
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).to(dtype)
    whole = sum(weight.numel() * 4 for weight in model.parameters())
    monkeypatch.setattr(step, "PIECE", whole // 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    average = step.ExponentialMovingAverage(model, optimizer, 0.5)

    @torch.no_grad()
    def take_step_and_evaluate(checks: bool) -> None:
        optimizer.step()
        before = [each.clone() for each in (*model.parameters(), *average.averages)] if checks else []
        with average.in_place():
            if checks:
                assert all(map(torch.equal, model.parameters(), (each.to(dtype) for each in before[16:])))
        assert not checks or all(map(torch.equal, (*model.parameters(), *average.averages), before))

    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    take_step_and_evaluate(True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        take_step_and_evaluate(False)
    assert profiled.profiler
    now, most = 0, 0
    for event in profiled.profiler.kineto_results.events():
        now += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, now)
    assert 0 < most <= whole * (0.3 if dtype == torch.float32 else 0.8)
