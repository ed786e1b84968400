"""Metrics of all samples: summarize() gets each evaluated sample once, in the order of the set."""

import json
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

from tests.conftest import Package, Render
from tests.support.ranks import error_in, output_of_fork, train_on_ranks
from tests.support.training import ON_CPU
from tools.rewriting import extend

OWN_DATA = """

from torch.utils.data import Subset
from .runtime import Data

load_pair = load_data


def load_data(config):
    train, rest = load_pair(config)
    return Data(train, {"validation": rest, "few": Subset(rest, [7, 3])})
"""
OWN_TASK = """

from sklearn.metrics import roc_auc_score
from .runtime import AllSamples

BEST = "auroc"
compute_means = compute


def compute(model, batch, config):
    logits = model(batch[0])
    return compute_means(model, batch, config) | {"answers": AllSamples(logits[:, 0].bfloat16(), batch[1], logits)}


def summarize(means):
    if "answers" not in means:
        return {"loss": means["loss"]}
    half, labels, logits = means["answers"]
    torch.save({"half": half, "labels": labels, "logits": logits}, f"rows-{len(labels)}.pt")
    zeros = labels == 0
    area = roc_auc_score(zeros, logits[:, 0]) if zeros.any() else math.nan
    return {"loss": means["loss"], "auroc": area}
"""
PLAIN = """
import torch
from ddp_project import data, model
network = model.build_model(None)
network.load_state_dict(torch.load("{}", weights_only=True)["model"])
images, labels = data.load_pair(None)[1].__getitems__([*range(360)])
with torch.no_grad():
    torch.save((network.eval()(images), labels), "plain.pt")
"""


def test_each_sample_comes_once_and_in_order(own_project: Render, package: Package, tmp_path: Path) -> None:
    project, run_dir = own_project(), tmp_path / "run"
    for file, text in (("data.py", OWN_DATA), ("task.py", OWN_TASK)):
        with open(project / "ddp_project" / file, "a") as module:
            module.write(text)
    train_on_ranks(project, run_dir, "--max-steps", "30")
    output_of_fork(PLAIN.format(run_dir / "checkpoints" / "best.pt"), project=project)
    logits, labels = torch.load(project / "plain.pt")
    area = roc_auc_score(labels == 0, logits[:, 0])
    assert 0.6 < area < 1
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = [record["epoch/validation_auroc"] for record in records if "epoch" in record]
    assert max(evaluated) == pytest.approx(area)
    assert not [record for record in records if "train/auroc" in record]
    assert package("runtime.metrics").AT_ONCE < 90, "each rank sends its rows in two pieces"
    for ranks, size in ((1, "4"), (3, "5")):  # 90 batches, and on each of three ranks 120 of one sample
        words = "evaluate.py", run_dir, *ON_CPU, "--global-batch-size", size
        printed = output_of_fork(*words, project=project, processes=ranks)
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        assert {line["set"]: line["auroc"] for line in lines} == {"validation": pytest.approx(area), "few": None}
        for number, chosen in ((360, [*range(360)]), (2, [7, 3])):
            rows = torch.load(project / f"rows-{number}.pt")
            assert rows["labels"].tolist() == labels[chosen].tolist()
            torch.testing.assert_close(rows["logits"], logits[chosen])
            assert rows["half"].dtype == torch.float32
            torch.testing.assert_close(rows["half"], logits[chosen, 0], rtol=0.01, atol=0.01)


def test_what_is_no_row_for_each_sample_is_refused(package: Package) -> None:
    metrics, exits = package("runtime.metrics"), package("runtime.exits")
    loss, rows = metrics.Mean(torch.zeros(()), 1), torch.zeros(3, 2)
    assert metrics.checked({"loss": loss, "x": metrics.AllSamples(rows, rows[:, 0])})
    for wrong in ((), (rows, rows[:2]), (torch.zeros(()),), ([1, 2, 3],), (rows, torch.zeros(()))):
        with pytest.raises(exits.UserError, match=r'task.py: "x" must be AllSamples of tensors, a row for each sample'):
            metrics.checked({"loss": loss, "x": metrics.AllSamples(*wrong)})
    with pytest.raises(exits.UserError, match='the AllSamples of "x" must have rows of one shape'):
        metrics.joined("x", [(rows,), (rows[:, :1],)])
    assert [each.shape for each in metrics.joined("x", [(rows, rows), (rows[:1], rows[:1])])] == [(4, 2), (4, 2)]


def test_each_batch_must_have_the_same_names(package: Package) -> None:
    metrics, exits = package("runtime.metrics"), package("runtime.exits")
    loss, rows = {"loss": metrics.Mean(1.0, 1)}, {"x": metrics.AllSamples(torch.zeros(3))}
    for first, second in ((loss, loss | rows), (loss | rows, loss), (loss | rows, loss | {"y": rows["x"]})):
        sums = metrics.EvaluationAccumulator(torch.device("cpu"))
        sums.add(first)
        with pytest.raises(exits.UserError, match="the same names for every batch, not loss"):
            sums.add(second)
    sums = metrics.MetricAccumulator(torch.device("cpu"))
    for size in (2, 3):
        sums.add({"loss": metrics.Mean(torch.zeros(size), 1)})
    with pytest.raises(exits.UserError, match="each sum must have the same shape in every batch"):
        sums._add_up()


def test_a_shape_that_changes_later_is_refused(package: Package) -> None:
    metrics, exits = package("runtime.metrics"), package("runtime.exits")
    sums = metrics.MetricAccumulator(torch.device("cpu"))
    sums.add({"loss": metrics.Mean(torch.zeros(2), 1)})
    sums._add_up()
    sums.add({"loss": metrics.Mean(torch.zeros(3), 1)})
    with pytest.raises(
        exits.UserError, match=r"each sum must have the same shape in every batch: 4 numbers .* before 3"
    ):
        sums._add_up()


def test_what_changes_after_compute_counts_as_it_was(package: Package) -> None:
    """Weights, and what is filled anew for each batch; what was never changed before is refused if it is now."""
    metrics, exits = package("runtime.metrics"), package("runtime.exits")
    weight, fresh = torch.nn.Parameter(torch.zeros(2)), torch.zeros(())
    filled, sums = torch.zeros(2).fill_(7), metrics.EvaluationAccumulator(torch.device("cpu"))
    for value in (1.0, 2.0):
        with torch.no_grad():
            weight.fill_(value)
        filled.fill_(value)
        rows = metrics.AllSamples(filled, weight, torch.zeros(5000)[:2])
        sums.add({"loss": metrics.Mean(weight[0], 1), "filled": metrics.Mean(filled, 1), "rows": rows})
    assert all(each.untyped_storage().nbytes() == 8 for each in sums.waiting[0]["rows"]), "not what they are parts of"
    assert [[*map(float, each)] for each in zip(*(rows["rows"][0] for rows in sums.waiting), strict=True)] == 2 * [
        [1, 2]
    ]
    sums._add_up()
    assert sums.totals.tolist() == [3, 2, 3, 3, 2]
    other = metrics.MetricAccumulator(torch.device("cpu"))
    other.add({"loss": metrics.Mean(torch.ones(()), 1), "fresh": metrics.Mean(fresh, 1)})
    fresh.add_(1)
    with pytest.raises(exits.UserError, match=r'"fresh" was changed in place after compute\(\) had returned it'):
        other._add_up()


def test_all_samples_of_one_rank_alone_are_one_line(own_project: Render, tmp_path: Path) -> None:
    project = own_project()
    more = """
compute_all = compute


def compute(model, batch, config):
    found = compute_all(model, batch, config)
    return found | ({"x": AllSamples(batch[1])} if torch.distributed.get_rank() else {})
"""
    extend(project / "ddp_project" / "task.py", more, imports="import torch\nfrom .runtime import AllSamples\n")
    error = error_in(train_on_ranks(project, tmp_path / "run", "--max-steps", "2", code=2))
    assert "compute() must return the same names and shapes on every rank, not" in error


def test_all_samples_without_summarize_are_one_line(own_project: Render, tmp_path: Path) -> None:
    project = own_project()
    with open(project / "ddp_project" / "task.py", "a") as module:
        module.write(OWN_TASK.partition("def summarize")[0].replace("auroc", "accuracy"))
    printed = train_on_ranks(project, tmp_path / "run", "--max-steps", "2", code=2)
    assert 'task.py: "answers" is (tensor' in error_in(printed), printed
