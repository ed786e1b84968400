"""The comparisons of speed are fair, say what they mean, and still find what they measure."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ablation import EDITS
from benchmarks.blocks import GENERATED, OPTIONS, PLAIN, PLAIN_STATIC, STEPS_OF_BLOCK, measure, quartiles
from benchmarks.contenders.workloads import WORKLOADS
from benchmarks.guards import PARTS, measure_guards
from benchmarks.runner import in_turn, ratios
from benchmarks.trials import Contender, Trial, render_project

STEPS = 4


def test_contenders_end_with_the_same_weights(tmp_path: Path) -> None:
    """An epoch is a single batch: so it does not matter in which order a contender takes the samples."""
    project = render_project(tmp_path / "project")
    trial = Trial("transformer", replace(WORKLOADS["transformer"], steps=STEPS, epochs=STEPS), Path(sys.executable))
    # So many epochs that the learning rate has hardly fallen after the first steps.
    nearly_constant = ("--epochs", "100000", "--max-steps", str(STEPS))
    own, generated = f"step-{STEPS}.pt", Contender(str(project), options=nearly_constant)

    def train(contender: Contender, name: str, checkpoint: str) -> dict[str, Tensor]:
        """Train a contender that needs no framework, and return its weights."""
        (tmp_path / name).mkdir()
        trial.train(contender, tmp_path / name)
        return dict(torch.load(tmp_path / name / checkpoint, weights_only=True)["model"])

    wanted = train(Contender("minimal"), "minimal", own)
    for tolerance, found in (
        (0, train(Contender("tutorial"), "tutorial", own)),
        (1e-4, train(Contender("minimal", tuned=True), "tuned", own)),
        (1e-4, train(generated, "generated", "run/checkpoints/last.pt")),
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


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
    log = "".join(file.read_text() for file in tmp_path.glob("*/run/train.log"))
    assert f"step {3 * STEPS_OF_BLOCK['tiny_mlp']}  train/loss" in log, "the first block does not count"


def test_each_edit_finds_its_line_and_leaves_python(tmp_path: Path) -> None:
    project = render_project(tmp_path / "project")
    for number, edit in enumerate(EDITS):
        edited = edit.apply(project, tmp_path / str(number))
        (file,) = [path for path in edited.rglob(edit.file) if path.parent.name != "tests"]
        before = project / file.relative_to(edited)
        assert file.read_text() != before.read_text()
        compile(file.read_text(), file, "exec")


def test_each_guard_is_measured(tmp_path: Path) -> None:
    found = measure_guards(tmp_path, "small_cnn", steps=10, loggers=["csv"])
    others = ["a progress bar on a screen", "the log", "the log and csv"]
    assert [*found] == ["judging each step by its gradients", "signs of life", *others]
    beaten = found.pop("signs of life")  # four times a second: perhaps not once in so few steps
    assert all(0 <= share < 0.1 for share in beaten["share"])
    assert all(0 < share < 1 for record in found.values() for share in record["share"])
    [log] = tmp_path.glob("console/*/run/train.log")
    assert "train/loss" in log.read_text()
    [recorded] = tmp_path.glob("csv/*/run/metrics.csv")
    assert recorded.read_text().count("train/loss") == 1 + PARTS, "the first part warms up"
