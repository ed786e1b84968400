"""Whatever task.py and model.py hold, it trains, or one line says what to put there instead."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.core.tasks.test_parameters import OPTIONS, RANK, UNUSED, changed
from tests.support.forked_runs import Program, metrics, run_all
from tests.support.ranks import error_in
from tools.rewriting import Rewrite, extend

NONSENSE = {
    "a loss of each sample": (
        Rewrite('reduction="sum"', 'reduction="none"', "compute"),
        'task.py: the sum of "loss" must be a scalar, not of shape (12,)',
    ),
    "a loss that cannot be trained": (
        Rewrite("F.cross_entropy($$$A)", "{}.detach()", "compute"),
        'task.py: "loss" has no gradient',
    ),
    "no loss": (
        Rewrite('"loss": $X', '"error": $X', "compute"),
        "task.py: compute() must return a dict with \"loss\": Mean(sum, count), not a dict of ['error', 'accuracy']",
    ),
    "no dict": (
        Rewrite("return $X", "return logits.sum()", "compute"),
        'task.py: compute() must return a dict with "loss": Mean(sum, count), not Tensor',
    ),
    "a metric without a count": (
        Rewrite('"accuracy": $X', '"accuracy": 0.5', "compute"),
        'task.py: "accuracy" must be a Mean(sum, count) of tensors or numbers, not 0.5',
    ),
    "a metric that is no number": (
        Rewrite('"accuracy": $X', '"accuracy": Mean(logits.sum(dim=0), 1)', "compute"),
        'task.py: "accuracy" has shape (10,): let summarize() make a number of it',
    ),
    "no summary": (
        Rewrite('BEST = "accuracy"', "{}\n\n\ndef summarize(means):\n    means.clear()"),
        "task.py: summarize() must return a dict of numbers, and returned None",
    ),
    "a summary in words": (
        Rewrite('BEST = "accuracy"', "{}\n\n\ndef summarize(means):\n    return means | {'rank': 'n/a'}"),
        "task.py: \"rank\" is 'n/a' of type str: let summarize() make a number of it",
    ),
    "nothing that counts": (
        Rewrite('"loss": Mean($X, $Y)', '"loss": Mean($X, 0)', "compute"),
        'task.py: the count of "loss" is 0 over all ranks',
    ),
    "other names on another rank": (
        Rewrite('"accuracy": $X', f'f"accuracy{{{RANK}}}": $X', "compute"),
        "task.py: compute() must return the same names and shapes on every rank",
    ),
    "a best metric that is none": (
        Rewrite('BEST = "accuracy"', 'BEST = "f1"'),
        'task.py: BEST is "f1", which is none of the metrics: loss, accuracy',
    ),
}


@pytest.mark.parametrize("mistake", NONSENSE)
def test_nonsense_is_refused_in_one_line(mistake: str, small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(), tmp_path / "project")
    edit, words = NONSENSE[mistake]
    edit.apply(project / "ddp_project" / "task.py")
    [[ended]] = run_all([[Program(project, tmp_path / "run", OPTIONS, code=2)]])
    assert words in error_in(ended.output)
    assert not [*(tmp_path / "run").glob("checkpoints/*.pt")]


# Appended to task.py: a penalty on slopes, in evaluations too. The first of these keeps a table for the training.
PENALISED = """

def penalised(model: nn.Module, batch: Any, compute: Any = compute) -> dict[str, Mean]:
    images, labels = batch
    with torch.enable_grad():
        inputs = images.clone().requires_grad_()
        [slopes] = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    if not model.training and not table:
        table.append(model(images).mean(dim=0))
    penalty = slopes.square().sum() + sum((next(model.parameters()).mean() * each).sum() for each in table)
    means = compute(model, batch)
    loss = means["loss"]
    return means | {"loss": Mean(loss.sum + 1e-3 * penalty, loss.count), "slope": Mean(slopes.abs().sum(), len(labels))}


table: list[Tensor] = []
compute = penalised
"""


def test_evaluations_may_compute_gradients_and_keep_tensors_for_the_training(small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(logging="csv"), tmp_path / "project")
    extend(project / "ddp_project" / "task.py", PENALISED)
    program = Program(project, tmp_path / "run", OPTIONS | {"epochs": 2})
    run_all([[program]])
    assert [value > 0 for _, value in metrics(program.run_dir)["epoch/validation_slope"]] == [True, True]


# What test_parameters.py refuses without --find-unused-parameters.
ON_ONE_RANK = f"""network.sometimes = nn.Linear(10, 10)
    network.classifier.register_forward_hook(
        lambda _, __, logits: network.sometimes(logits) if {RANK} == 1 or not network.training else logits
    )"""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen parameters": ("network.features.requires_grad_(False)", {}),
    "unused parameters": ("network.unused = nn.Linear(3, 3)", UNUSED),
    "parameters that one rank alone uses": (ON_ONE_RANK, UNUSED),
    "tied weights": (
        "network.classifier.extend([nn.Linear(10, 10), nn.Linear(10, 10)])\n"
        "    network.classifier[4].weight = network.classifier[3].weight",
        {},
    ),
    "integer buffers": ('network.register_buffer("seen", __import__("torch").zeros(3, dtype=int))', {}),
    "no BatchNorm": ("network.features = nn.Sequential(nn.Conv2d(1, 64, 4, stride=4))", {}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_trains_and_goes_on_after_a_stop(kind: str, small: Render, tmp_path: Path) -> None:
    change, options = MODELS[kind]
    project = changed(small(logging="csv"), tmp_path / "project", change)
    whole = Program(project, tmp_path / "whole", OPTIONS | options)
    stopped = stopped_at(whole, 3)
    run_all([[whole], stopped])
    assert_ends_like(whole, stopped[-1])
