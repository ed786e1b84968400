"""load_data() may return several sets to evaluate on, and a test set, which is evaluated once, at the end of a run."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.conftest import Package, Render
from tests.support.processes import output_of
from tests.support.ranks import output_of_fork, train_on_ranks
from tests.support.training import ON_CPU

OWN_DATA = """

from torch.utils.data import Subset
from .runtime import Data

load_pair = load_data


def load_data(config):
    train, rest = load_pair(config)
    if config.other:
        return Data(train, {"other": Subset(rest, range(50, 120))})
    evaluation = {"validation": Subset(rest, range(100)), "validation_b": Subset(rest, range(100, 171))}
    return Data(train, evaluation, test={"far/test": Subset(rest, range(171, 360))})
"""
OWN_OPTION = "    other: bool = False\n"
PARTS = {"validation": (0, 100), "validation_b": (100, 171), "far/test": (171, 360), "other": (50, 120)}
OPTIONS = ("--epochs", "3", "--global-batch-size", "96")


def expected(project: Path, run_dir: Path, step: int) -> dict[str, tuple[float, float]]:
    """Return loss and accuracy of each set, by plain PyTorch, of the weights that a checkpoint has."""
    program = f"""
import json, torch
from torch.nn import functional as F
from ddp_project import data, model
weights = torch.load("{run_dir}/checkpoints/step-{step:08d}.pt", weights_only=True)["model"]
network = model.build_model(None)
network.load_state_dict(weights)
rest = data.load_pair(None)[1]
found = {{}}
for name, (first, end) in {PARTS}.items():
    images, labels = rest.__getitems__([*range(first, end)])
    with torch.no_grad():
        logits = network.eval()(images)
    accuracy = (logits.argmax(dim=1) == labels).double().mean().item()
    found[name] = F.cross_entropy(logits, labels).item(), accuracy
print(json.dumps(found))
"""
    found = json.loads(output_of_fork(program, project=project))
    return {name: tuple(values) for name, values in found.items()}


@pytest.fixture
def with_sets(own_project: Render) -> Path:
    """A project with two sets to evaluate on and a test set, of which the best weights are those of the first epoch."""
    project = own_project()
    texts = {"data.py": OWN_DATA, "options.py": OWN_OPTION, "task.py": "\n\nHIGHER_IS_BETTER = False\n"}
    for file, text in texts.items():
        with open(project / "ddp_project" / file, "a") as module:
            module.write(text)
    return project


def test_every_set_is_evaluated_and_the_test_set_with_the_best_weights(with_sets: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_on_ranks(with_sets, run_dir, *OPTIONS)
    result = json.loads((run_dir / "result.json").read_text())
    best, last = result["best"]["step"], result["step"]
    assert best < last, "else the best weights would also be the last ones"
    of_best, of_last = expected(with_sets, run_dir, best), expected(with_sets, run_dir, last)
    assert (result["test"]["loss"], result["test"]["accuracy"]) == pytest.approx(of_best["far/test"], rel=1e-5)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluated = {record["step"]: record for record in records if "epoch" in record}
    for step, of_step in ((best, of_best), (last, of_last)):
        for name in ("validation", "validation_b"):
            seen = [evaluated[step][f"epoch/{name}_{metric}"] for metric in ("loss", "accuracy")]
            assert tuple(seen) == pytest.approx(of_step[name], rel=1e-5)
    assert result["best"]["validation_b/accuracy"] == evaluated[best]["epoch/validation_b_accuracy"]
    assert [record["step"] for record in records if "far/test/loss" in record] == [last]
    assert records[0]["sets"] == ["validation", "validation_b"], "the page has accuracy of both on one chart"

    from_last = ("--resume", str(run_dir / "checkpoints" / "last.pt"))  # of a run that is complete: there is no best.pt
    train_on_ranks(with_sets, tmp_path / "other", *OPTIONS, *from_last)
    again = json.loads((tmp_path / "other" / "result.json").read_text())
    assert again["test"]["loss"] == pytest.approx(of_last["far/test"][0], rel=1e-5)

    for ranks, options in ((1, []), (3, []), (1, ["--other"])):  # ranks need not divide the batch
        words = ["evaluate.py", str(run_dir), *ON_CPU, *options]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        printed = output_of_fork(*words, project=with_sets) if ranks == 1 else output_of([*launcher, *words], with_sets)
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        found = {line.pop("set"): line for line in map(json.loads, lines)}
        assert {*found} == ({"other"} if options else {*PARTS} - {"other"})
        for name, values in found.items():
            assert tuple(values.values()) == pytest.approx(of_best[name], rel=1e-5)


def test_the_test_set_is_evaluated_once(with_sets: Path, tmp_path: Path) -> None:
    """Not where --max-steps stops the run, and not again if the command of a complete run is repeated."""
    run_dir, results = tmp_path / "run", []
    for stop in (("--max-steps", "5"), ("--max-steps", "10"), (), ()):
        train_on_ranks(with_sets, run_dir, *OPTIONS, *stop, "--resume", "auto")
        results.append(json.loads((run_dir / "result.json").read_text()))
    last = results[-1]["step"]
    assert [result["step"] for result in results] == [5, 10, last, last]
    assert ["test" in result for result in results] == [False, False, True, True]
    assert results[-1]["test"] == results[-2]["test"]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "far/test/loss" in record] == [last]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_best_of_a_run_that_goes_back_is_its_own(is_damaged: bool, own_project: Render, tmp_path: Path) -> None:
    """The later checkpoints were better, or are damaged."""
    project, run_dir, options = own_project(), tmp_path / "run", (*OPTIONS, "--keep", "3")
    for file, text in {"data.py": OWN_DATA, "options.py": OWN_OPTION}.items():
        with open(project / "ddp_project" / file, "a") as module:
            module.write(text)
    train_on_ranks(project, run_dir, *options)
    first, *others = sorted((run_dir / "checkpoints").glob("step-*.pt"))
    for checkpoint in others if is_damaged else []:
        checkpoint.write_bytes(b"damaged")
    resume = "--resume" if is_damaged else f"--resume={first}"
    train_on_ranks(project, run_dir, *options, "--lr", "5", resume)
    result = json.loads((run_dir / "result.json").read_text())
    step = int(first.stem.removeprefix("step-"))
    assert (result["best"]["step"], result["step"]) == (step, 3 * step)
    assert result["test"]["loss"] == pytest.approx(expected(project, run_dir, step)["far/test"][0], rel=1e-5)


def test_what_cannot_be_evaluated_is_one_line(with_sets: Path, tmp_path: Path) -> None:
    missing = output_of_fork("evaluate.py", tmp_path / "nowhere", project=with_sets, code=2)
    assert missing == f"error: there is no run in {tmp_path}/nowhere: name a run directory, or a checkpoint in it\n"
    wrong = output_of_fork("evaluate.py", "--lrr", "3", project=with_sets, code=2)
    assert wrong.startswith("error: "), wrong


def test_names_of_sets_differ(package: Package) -> None:
    loading, exits, kept = package("runtime.data_loading"), package("runtime.exits"), [0, 1]
    checked = lambda **sets: loading.checked(loading.Data(kept, **sets))  # noqa: E731
    assert checked(evaluation=kept).evaluation == {"validation": kept}
    assert [*checked(evaluation={"b": kept, "a": kept}, test={"x": kept}).evaluation] == ["b", "a"]
    twice: dict[str, Any] = {"evaluation": {"test": kept}, "test": kept}
    wrong: dict[str, Any]
    for wrong in (twice, {"evaluation": {}}, {"evaluation": {"train": kept}}):
        with pytest.raises(exits.UserError, match="each with a name of its own"):
            checked(**wrong)
    for name in ("device", "waiting/b"):
        with pytest.raises(
            exits.UserError, match=f"records have other numbers of the name {name}: rename this test set"
        ):
            checked(evaluation=kept, test={name: kept})
    with pytest.raises(exits.UserError, match=r"must return Data\(train=\.\.\., evaluation=\.\.\.\), .*, not 3 things"):
        loading.checked((kept, kept, kept))
    with pytest.raises(exits.UserError, match="the validation set is a dict of train, test, and no dataset"):
        checked(evaluation={"validation": {"train": kept, "test": kept}})
    with pytest.raises(exits.UserError, match="give several test sets by their names"):
        checked(evaluation=kept, test=[TensorDataset(torch.zeros(3)), kept])
    with pytest.raises(exits.UserError, match="the hard set is a stream"):
        checked(evaluation={"easy": kept, "hard": iter(kept)})
    with pytest.raises(exits.UserError, match=r"the validation set is a DataLoader, .*: return its dataset"):
        checked(evaluation=DataLoader(TensorDataset(torch.zeros(3))))


def test_a_split_that_is_drawn_without_a_seed_is_the_same_at_each_start(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, config = package("runtime.data_loading"), package("config").Config

    def load_data(options: Any) -> Any:
        numbers = [*np.random.permutation(99), *random.sample(range(99), 99), *torch.randperm(99).tolist()]
        return numbers[:250], numbers[250:]

    monkeypatch.setattr(loading.data, "load_data", load_data)
    torch.seed()  # another one at each start
    before = str(np.random.get_state()), torch.initial_seed(), torch.get_rng_state().tolist()
    first, again, other = (loading.load_own(config(seed=seed)) for seed in (7, 7, 8))
    assert first.train == again.train != other.train
    assert (str(np.random.get_state()), torch.initial_seed(), torch.get_rng_state().tolist()) == before
