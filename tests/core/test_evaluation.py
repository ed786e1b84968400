"""Evaluation gives every rank equally many batches, so collectives in compute() meet, and counts each sample once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather as gather_together
from torch.utils.data import Subset

from generator.check.train.records import read_csv
from tests.conftest import Package, Render
from tests.support.ranks import on_compute, output_of_fork, project_module, run_train, start_ranks, train_on_ranks, wrap
from tests.support.training import ON_CPU
from tools.rewriting import extend


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_all_ranks_have_equally_many_batches(ranks: int, size: int, package: Package) -> None:
    world, batches_of = package("runtime.launcher").DistEnv, package("runtime.sampling").EvaluationSampler
    for samples in (1, 2, 3, 7, 64, 128, 129, 257):
        shards = [batches_of(samples, size, world(rank, 0, ranks, 1)) for rank in range(ranks)]
        assert {len(shard) for shard in shards} == {-(-samples // (ranks * size))}, "no more than are needed"
        rows = [[*row] for row in zip(*shards, strict=True)]
        counted = [batch for row in rows for batch in row if batch.counts]
        assert [index for batch in counted for index in batch.indices] == [*range(samples)]
        lengths = {len(batch.indices) for batch in counted}
        assert max(lengths) <= min(size, min(lengths) + 1)
        uneven = sum(len({len(batch.indices) for batch in row}) > 1 for row in rows)
        assert uneven <= (1 if samples % ranks else 0), "what compute() gathers has the same shape on all ranks"
        empty = [batch for row in rows for batch in row if not batch.counts]
        assert not empty or samples < len(rows) * ranks
        assert all(len(batch.indices) == 1 and batch.indices[0] < samples for batch in empty)
    last = batches_of(10**12 + 1, size, world(ranks - 1, 0, ranks, 1))
    assert len(next(iter(last)).indices) in (size - 1, size)


def evaluate_together() -> None:
    """Be a rank whose compute() exchanges something with all ranks, and whose sample without weight gives NaN."""
    mean, samples = project_module("runtime.metrics").Mean, int(os.environ["SAMPLES"])

    def make(compute: Any) -> Any:
        def compute_together(model: Any, batch: Any, config: Any) -> Any:
            together = torch.cat(gather_together(model(batch[0])))  # as contrastive losses do it
            assert len(together) == dist.get_world_size() * len(batch[0])
            means = compute(model, batch, config)
            if model.training:
                return means | {"seen": mean(0, 1)}
            return means | {"seen": mean(len(batch[0]) * (float("nan") if dist.get_rank() >= samples else 1.0), 1)}

        return compute_together

    wrap("data.load_data", lambda load: lambda config: (load(config)[0], Subset(load(config)[1], range(samples))))
    wrap("task.compute", make)
    run_train()


@pytest.mark.parametrize(("samples", "seen"), [("1", "1"), ("130", "21.67")])
def test_collectives_in_compute_meet(samples: str, seen: str, project: Render, tmp_path: Path) -> None:
    run, env = (project(), tmp_path / "run"), {"SAMPLES": samples}
    printed, _ = train_on_ranks(*run, "--epochs", "1", entry=evaluate_together, env=env)
    assert "nan" not in printed
    assert f"epoch/validation_seen {seen} " in " ".join([*printed.split(), ""])


def change_weights_of_one_rank() -> None:
    def before(model: Any, batch: Any) -> None:
        weight = next(model.parameters()).detach()
        if dist.get_rank() and os.environ["HOW"] == "values":
            weight.add_(0.01)
        elif dist.get_rank():
            weight.copy_(weight.flip(0))

    on_compute(before)
    run_train()


@pytest.mark.parametrize("how", ["values", "places"])
def test_weights_that_differ_by_rank_are_no_checkpoint(how: str, project: Render, tmp_path: Path) -> None:
    run, env = (project(), tmp_path / "run", "--max-steps", "1"), {"HOW": how}
    printed = train_on_ranks(*run, code=2, entry=change_weights_of_one_rank, env=env)
    said = "error: ranks have different weights: features.0.0.weight; change weights by the optimizer alone"
    assert said in "".join(printed)
    assert not [*tmp_path.glob("run/checkpoints/*.pt")]


def exchange_what_differs() -> None:
    """Be a rank whose compute() exchanges tensors of other shapes, or other collectives, than that of the other."""
    rank = int(os.environ["RANK"])

    def before(model: Any, batch: Any) -> None:
        own = torch.ones(40 + rank * (os.environ["DIFFERS"] == "shapes"))
        if os.environ["DIFFERS"] == "shapes" or rank:
            dist.all_gather([torch.empty_like(own) for _ in range(2)], own)
        else:
            dist.barrier()

    on_compute(before)
    run_train()


@pytest.mark.parametrize("differs", ["shapes", "collectives"])
def test_collectives_that_do_not_match_are_told_as_such(differs: str, project: Render, tmp_path: Path) -> None:
    options = ("--timeout", "10", "--epochs", "1")
    ranks = start_ranks(project(), tmp_path / "run", *options, entry=exchange_what_differs, env={"DIFFERS": differs})
    for rank in ranks:
        rank.process.join(60)
    printed = "".join(rank.output.read_text() for rank in ranks)
    assert {rank.process.exitcode for rank in ranks} <= {2, 69}, printed
    told = {"ranks must call the same collectives" in line for line in printed.splitlines() if "error: " in line}
    assert told == {True}, printed
    assert "start again with --resume" not in printed


# Appended to data.py and task.py: two kinds of samples, each with its own metric.
TWO_KINDS = """

def load_data(config, load=load_data):
    train, evaluation = load(config)
    labels = [int(sample[1]) for sample in evaluation]
    kinds = [[i for i, label in enumerate(labels) if (label < 5) == small] for small in (True, False)]
    first, second = (Subset(evaluation, each) for each in kinds)
    return Data(train, evaluation={"first": first, "second": second}, test=second)
"""
TWO_METRICS = """

def compute(model, batch, config, compute=compute):
    means = compute(model, batch, config)
    if not model.training and batch[1].min() >= 5:
        means["error"] = means.pop("accuracy")
    return means
"""


ANNEALED = """

def compute(model, batch, config, compute=compute):
    return compute(model, batch, config) | {"step": Mean(current_step(), 1)}
"""


def test_an_evaluation_of_a_checkpoint_has_its_step(own_project: Render, tmp_path: Path) -> None:
    project, run_dir = own_project(), tmp_path / "run"
    extend(project / "ddp_project" / "task.py", ANNEALED, imports="from .runtime import current_step\n")
    train_on_ranks(project, run_dir, "--max-steps", "4", "--eval-every", "2steps")
    saved = str(run_dir / "checkpoints" / "step-00000002.pt")
    found = json.loads(output_of_fork("evaluate.py", saved, *ON_CPU, project=project).splitlines()[-1])
    assert found["step"] == 2


def test_only_the_first_set_must_have_the_metric_that_decides(own_project: Render, tmp_path: Path) -> None:
    project = own_project(logging="csv")
    imports = "from torch.utils.data import Subset\n\nfrom .runtime import Data\n"
    extend(project / "ddp_project" / "data.py", TWO_KINDS, imports=imports)
    extend(project / "ddp_project" / "task.py", TWO_METRICS)
    train_on_ranks(project, tmp_path / "run", "--epochs", "1")
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "accuracy" in found["best"]
    assert "error" in found["test"]
    assert {"epoch/first_accuracy", "epoch/second_error"} <= read_csv(tmp_path / "run").keys()
