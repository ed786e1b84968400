"""The comparisons of speed are fair, say what they mean, and still find what they measure."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.blocks import GENERATED, OPTIONS, PLAIN, PLAIN_STATIC, STEPS_OF_BLOCK, measure, quartiles
from benchmarks.contenders.workloads import WORKLOADS
from benchmarks.runner import in_turn, ratios
from benchmarks.trials import Contender, Trial, render_project

STEPS = 4
Trained = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render_project(tmp_path_factory.mktemp("rendered") / "project")


@pytest.fixture(scope="module")
def trained(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The weights at the end of each contender that needs no framework.

    An epoch is a single batch: so it does not matter in which order a contender takes the samples.
    """
    trial = Trial("transformer", replace(WORKLOADS["transformer"], steps=STEPS, epochs=STEPS), Path(sys.executable))
    # So many epochs that the learning rate has hardly fallen after the first steps.
    nearly_constant = ("--epochs", "100000", "--max-steps", str(STEPS))
    contenders = {
        "minimal": (Contender("minimal"), f"step-{STEPS}.pt"),
        "tutorial": (Contender("tutorial"), f"step-{STEPS}.pt"),
        "bare_tuned": (Contender("minimal", tuned=True), f"step-{STEPS}.pt"),
        "generated": (Contender(str(project), options=nearly_constant), "run/checkpoints/last.pt"),
    }
    found = {}
    for name, (contender, checkpoint) in contenders.items():
        out = tmp_path_factory.mktemp(name)
        trial.train(contender, out)
        found[name] = torch.load(out / checkpoint, weights_only=True)["model"]
    return found


@pytest.mark.parametrize(("name", "tolerance"), [("tutorial", 0), ("bare_tuned", 1e-4), ("generated", 1e-4)])
def test_contenders_end_with_the_same_weights(name: str, tolerance: float, trained: Trained) -> None:
    wanted, found = trained["minimal"], trained[name]
    assert found.keys() == wanted.keys()
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=tolerance)


def test_all_run_in_every_round_in_turn_and_are_compared_within_it() -> None:
    order: list[str] = []

    def run(name: str) -> dict[str, Any]:
        order.append(name)
        return {"rate": len(order)}

    *_, found = in_turn({name: partial(run, name) for name in "abc"}, 2, warm_up=1)
    assert "".join(order) == "abcbcacab"
    assert found == {"a": {"rate": [6, 8]}, "b": {"rate": [4, 9]}, "c": {"rate": [5, 7]}}
    assert ratios(found["b"]["rate"], found["a"]["rate"]) == [4 / 6, 9 / 8]
    assert quartiles([1.0, 1.0, 1.0], [2.0, 1.0, 4.0]) == [0.25, 0.5, 1]


def test_blocks_of_steps_are_compared_within_their_turn(tmp_path: Path) -> None:
    render_project(tmp_path / "project")
    records = measure(tmp_path, "tiny_mlp", blocks=2)
    found = {record["loop"]: record for record in records}
    assert [*found] == [PLAIN, PLAIN_STATIC, GENERATED, *OPTIONS]
    assert found[GENERATED]["ratio_quartiles"] == [1, 1, 1]
    assert all(record["seconds"] > 0 for record in records)
    log = "".join(file.read_text() for file in tmp_path.glob("*/run/train.log"))
    assert f"step {3 * STEPS_OF_BLOCK['tiny_mlp']}  train/loss" in log, "the first block does not count"
