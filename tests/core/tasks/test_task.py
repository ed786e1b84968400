"""Whatever task.py and model.py hold, it trains, or one line says what to put there instead."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.core.exact.test_resume import assert_stops_in_turn_change_nothing
from tests.core.tasks.test_parameters import OPTIONS, RANK, UNUSED, changed
from tests.support.forked_runs import Program, metrics, run_all
from tests.support.ranks import error_in
from tests.support.training import differences, whole_checkpoint
from tools.rewriting import Rewrite, extend

ALL = '__import__("ddp_project.runtime").runtime.AllSamples'
SUMMARY = "{}\n\n\ndef summarize(means):\n    "
# The edit of compute(), or of what is outside of functions, and the error.
NONSENSE = [
    ('"loss": Mean($X, $Y)', '"loss": Mean($X, labels[:1])', 'the count of "loss" must be a scalar, not of shape (1,)'),
    ('"loss": Mean($X, $Y)', f'"loss": {ALL}(logits)', '"loss" must be a Mean(sum, count) of tensors or numbers'),
    ('reduction="sum"', 'reduction="none"', 'the sum of "loss" must be a scalar, not of shape (12,)'),
    ("F.cross_entropy($$$A)", "{}.detach()", '"loss" has no gradient'),
    ('"loss": $X', '"error": $X', 'compute() must return a dict with "loss": Mean(sum, count), not a dict of [\'err'),
    ("return $X", "return logits.sum()", 'compute() must return a dict with "loss": Mean(sum, count), not Tensor'),
    ('"accuracy": $X', '"accuracy": 0.5', '"accuracy" must be a Mean(sum, count) of tensors or numbers, not 0.5'),
    ('"accuracy": $X', '"accuracy": Mean(logits.sum(dim=0), 1)', '"accuracy" has shape (10,): let summarize() make'),
    ('BEST = "accuracy"', f"{SUMMARY}means.clear()", "summarize() must return a dict of numbers, and returned None"),
    ('BEST = "accuracy"', f"{SUMMARY}return means | {{'rank': 'n/a'}}", "\"rank\" is 'n/a' of type str: let summ"),
    ('"loss": Mean($X, $Y)', '"loss": Mean($X, logits.exp().sum())', 'the count of "loss" is taken as a constant'),
    ('"loss": Mean($X, $Y)', '"loss": Mean($X, 0)', 'the count of "loss" is 0 over all ranks'),
    ('"accuracy": $X', f'f"accuracy{{{RANK}}}": $X', "compute() must return the same names and shapes on every rank"),
    ("def lr_at($$$A) -> float:\n    $$$B", "", "a name is missing that the program uses: add it"),
    ('BEST = "accuracy"', 'BEST = "f1"', 'BEST is "f1", which is none of the metrics: loss, accuracy; compute() must'),
    (
        "return config.lr * (step + 1) / $X",
        "return -0.1",
        "lr_at() must return a finite number of at least 0, not -0.1",
    ),
]
# Appended to task.py: a penalty on slopes, in evaluations too. The first of these keeps a table for the training.
PENALISED = """

def penalised(model: nn.Module, batch: Any, config: Any, compute: Any = compute) -> dict[str, Mean]:
    images, labels = batch
    with torch.enable_grad():
        inputs = images.clone().requires_grad_()
        [slopes] = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    if not model.training and not table:
        table.append(model(images).mean(dim=0))
    penalty = slopes.square().sum() + sum((next(model.parameters()).mean() * each).sum() for each in table)
    means = compute(model, batch, config)
    loss = means["loss"]
    return means | {"loss": Mean(loss.sum + 1e-3 * penalty, loss.count), "slope": Mean(slopes.abs().sum(), len(labels))}


table: list[Tensor] = []
compute = penalised
"""
# What test_parameters.py refuses without --find-unused-parameters.
ON_ONE_RANK = f"""network.sometimes = nn.Linear(10, 10)
    network.classifier.register_forward_hook(
        lambda _, __, logits: network.sometimes(logits) if {RANK} == 1 or not network.training else logits
    )"""
TIED = """network.classifier.extend([nn.Linear(10, 10), nn.Linear(10, 10)])
    network.classifier[4].weight = network.classifier[3].weight"""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen parameters": ("network.features.requires_grad_(False)", {}),
    "unused parameters": ("network.unused = nn.Linear(3, 3)", UNUSED),
    "parameters that one rank alone uses": (ON_ONE_RANK, UNUSED),
    "tied weights": (TIED, {}),
    "integer buffers": ('network.register_buffer("seen", __import__("torch").zeros(3, dtype=int))', {}),
    "no BatchNorm": ("network.features = nn.Sequential(nn.Conv2d(1, 64, 4, stride=4))", {}),
}


@pytest.mark.parametrize(("pattern", "edited", "words"), NONSENSE)
def test_nonsense_is_refused_in_one_line(pattern: str, edited: str, words: str, small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(), tmp_path / "project")
    function = "" if re.match("BEST|def", pattern) else "lr_at" if "config.lr" in pattern else "compute"
    Rewrite(pattern, edited, function).apply(project / "ddp_project" / "task.py")
    [[ended]] = run_all([[Program(project, tmp_path / "run", OPTIONS, code=2)]])
    assert f"task.py: {words}" in error_in(ended.output)
    assert not [*(tmp_path / "run").glob("checkpoints/*.pt")]


@pytest.mark.parametrize(
    ("name", "right", "answers"),
    [
        ("task.sumarize", "summarize", {}),
        ("data.prepair", "prepare", {}),
        ("model.module_to_shard", "modules_to_shard", {"parallel": "fsdp"}),
    ],
)
def test_a_misspelt_function_is_refused(
    name: str, right: str, answers: dict[str, str], small: Render, tmp_path: Path
) -> None:
    project = shutil.copytree(small(**answers), tmp_path / "project")
    file, function = name.split(".")
    extend(project / "ddp_project" / f"{file}.py", f"\n\ndef {function}(given):\n    return given\n")
    [[ended]] = run_all([[Program(project, tmp_path / "run", OPTIONS, code=2)]])
    expected = f"{file}.py: nothing calls {function}(): if it is meant to be {right}(), rename it"
    assert error_in(ended.output) == f"error: {expected}"


def test_a_helper_may_have_nearly_the_name_of_a_hook(small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(), tmp_path / "project")
    extend(project / "ddp_project" / "data.py", "\n\ndef _prepare(given):\n    return given\n\n\nADDED = _prepare(1)\n")
    run_all([[Program(project, tmp_path / "run", OPTIONS)]])


BAD_STEP = "(float('{}') if model.training and __import__('ddp_project.runtime').runtime.current_step() == 2 else 1)"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_count_that_is_not_finite_costs_one_step(parallel: str, small: Render, tmp_path: Path) -> None:
    """As a loss does that is not finite: the same step is left out, and all records are numbers."""
    programs = []
    for name, edited in {
        "loss": f"Mean($X * {BAD_STEP.format('nan')}, $Y)",
        "count": f"Mean($X, $Y * {BAD_STEP.format('nan')})",
        "infinite count": f"Mean($X, $Y * {BAD_STEP.format('inf')})",
    }.items():
        project = shutil.copytree(small(logging="csv", parallel=parallel), tmp_path / name / "project")
        Rewrite('"loss": Mean($X, $Y)', f'"loss": {edited}', "compute").apply(project / "ddp_project" / "task.py")
        programs.append(Program(project, tmp_path / name / "run", OPTIONS))
    ends = run_all([[program] for program in programs])
    loss, *counts = (whole_checkpoint(program.run_dir) for program in programs)
    for program, [ended], found in zip(programs[1:], ends[1:], counts, strict=True):
        assert "".join(ended.output).count("since their gradients were not finite: 1") == 1
        assert differences(found["model"], loss["model"]) == differences(found["update"], loss["update"]) == []
        recorded = [value for values in metrics(program.run_dir).values() for _, value in values]
        assert all(map(math.isfinite, recorded))


DRAWN = """

def summarize(means):
    return means | {"accuracy": means["accuracy"] + torch.randn(()).item()}
"""


def test_ranks_agree_on_the_best_also_if_summarize_draws(small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(), tmp_path / "project")
    extend(project / "ddp_project" / "task.py", DRAWN)
    options = OPTIONS | {"epochs": 12, "patience": 1, "timeout": 10}
    run_all([[Program(project, tmp_path / "run", options)]])


def test_another_metric_that_decides_begins_anew(small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(), tmp_path / "project")
    task = project / "ddp_project" / "task.py"
    by_accuracy, run_dir = task.read_text(), tmp_path / "run"
    for pattern, edited in {
        'BEST = "accuracy"': 'BEST = "loss"',
        "HIGHER_IS_BETTER = True": "HIGHER_IS_BETTER = False",
    }.items():
        Rewrite(pattern, edited, "").apply(task)
    run_all([[Program(project, run_dir, OPTIONS | {"epochs": 1})]])
    task.write_text(by_accuracy)
    [[ended]] = run_all([[Program(project, run_dir, OPTIONS | {"epochs": 3, "resume": "newest"})]])
    said = "the highest validation accuracy decides now, and the lowest validation loss did: the best checkpoint is"
    assert said in "".join(ended.output)
    best = json.loads((run_dir / "result.json").read_text())["best"]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = {each["step"]: each["epoch/validation_accuracy"] for each in records if "epoch" in each}
    del found[min(found)]  # when the loss decided
    assert best["accuracy"] == max(found.values()) == found[best["step"]]


def test_evaluations_may_compute_gradients_and_keep_tensors_for_the_training(small: Render, tmp_path: Path) -> None:
    project = shutil.copytree(small(logging="csv"), tmp_path / "project")
    extend(project / "ddp_project" / "task.py", PENALISED)
    program = Program(project, tmp_path / "run", OPTIONS | {"epochs": 2})
    run_all([[program]])
    assert [value > 0 for _, value in metrics(program.run_dir)["epoch/validation_slope"]] == [True, True]


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_trains_and_goes_on_after_a_stop(kind: str, small: Render, tmp_path: Path) -> None:
    change, options = MODELS[kind]
    whole = Program(changed(small(logging="csv"), tmp_path / "project", change), tmp_path / "whole", OPTIONS | options)
    assert_stops_in_turn_change_nothing(whole, 3)
