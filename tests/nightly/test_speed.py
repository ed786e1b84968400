"""The comparisons of speed are fair, say what they mean, and still find what they measure."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.blocks import GENERATED, OF_A_BLOCK, OPTIONS, PLAIN, PLAIN_STATIC, measure, ratio_to
from benchmarks.contenders.recording import COUNTING
from benchmarks.contenders.workloads import WORKLOADS
from benchmarks.edits import EDITS, Edit
from benchmarks.failures import CommandError
from benchmarks.guards import PARTS, measure_guards
from benchmarks.peers import pinned_versions
from benchmarks.rounds import compare, play
from benchmarks.step_parts import PARTS as STEP_PARTS
from benchmarks.trials import Contender, Trial, check_same, counted, measured, render_project
from generator.answers.questions import TEMPLATE
from tests.support.processes import output_of
from tools.docs.speed import block_table, guard_table, optimisation_table, part_table, speed_table, versions_line
from tools.rewriting import Rewrite

STEPS = 4
Notes = list[dict[str, Any]]
Trained = dict[str, tuple[Notes, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project with the network and the data of the workloads."""
    return render_project(tmp_path_factory.mktemp("rendered") / "project")


@pytest.fixture(scope="module")
def trained(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The notes of the ranks, and the weights at the end, of each contender that needs no framework.

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
        notes = trial.train(contender, out, {COUNTING: "1"})
        found[name] = notes, torch.load(out / checkpoint, weights_only=True)["model"]
    return found


@pytest.mark.parametrize(("name", "tolerance"), [("tutorial", 0), ("bare_tuned", 1e-4), ("generated", 1e-4)])
def test_contenders_end_with_the_same_weights(name: str, tolerance: float, trained: Trained) -> None:
    (_, wanted), (_, found) = trained["minimal"], trained[name]
    assert found.keys() == wanted.keys()
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=tolerance)


def test_contenders_begin_with_the_same_weights_batch_and_optimizer(trained: Trained) -> None:
    check_same({name: {"about": notes[0]["about"]} for name, (notes, _) in trained.items()})
    about = trained["minimal"][0][0]["about"]
    other = {**about, "optimizer": {**about["optimizer"], "weight_decay": 0.5}}
    with pytest.raises(CommandError, match=r"other trains .*'weight_decay': 0.5"):
        check_same({"minimal": {"about": about}, "other": {"about": other}})


def test_collectives_and_host_reads_of_a_step_are_counted(trained: Trained) -> None:
    found = {
        name: [notes[0][what][3] - notes[0][what][2] for what in ("collectives", "reads")]
        for name, (notes, _) in trained.items()
    }
    # Each step begins an epoch here, for which the sampler and the loader read two tensors.
    assert found["minimal"] == found["bare_tuned"] == [2, 2]
    assert found["tutorial"] == [3, 3]


def test_what_is_measured_leaves_the_warm_up_out() -> None:
    workload = replace(WORKLOADS["small_cnn"], steps=5, warm_up=2)
    notes = [
        {"forwards": [10.0, 12.0, 13.0, 13.5, 14.0], "peak_memory": 5},
        {"forwards": [10.0, 11.0, 13.0, 13.5, 14.0], "peak_memory": 7},
    ]
    assert measured(notes, workload, started=8.0) == {"samples_per_second": 64, "to_first_step": 4, "peak_memory": 7}
    with pytest.raises(CommandError, match="trained 5 steps, not 1200"):
        measured(notes, WORKLOADS["small_cnn"], started=8.0)


def test_counts_are_those_of_the_rank_that_does_most() -> None:
    notes = [
        {"collectives": [3 * step for step in range(40)], "reads": [0] * 40, "about": {"batch": 16}},
        {"collectives": [3 * step for step in range(40)], "reads": [*range(40)], "about": {}},
    ]
    assert counted(notes) == {"collectives": 3, "reads": 1, "about": {"batch": 16}}


def test_all_run_in_every_round_in_turn_and_are_compared_within_it() -> None:
    order = []

    def run(name: str) -> dict[str, Any]:
        order.append(name)
        return {"rate": {"a": 1, "b": 2, "c": 3}[name] * len(order)}

    *_, played = play(["a", "b", "c"], 3, run)
    ratios = compare(played, "a", "rate")
    assert "".join(order) == "abcbcacab"
    assert ratios["a"] == {"median": 1, "low": 1, "high": 1}
    assert ratios["b"] == {"median": round(2 * 9 / 8, 4), "low": round(2 * 4 / 6, 4), "high": 4}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_each_edit_finds_its_line_and_leaves_python(edit: Edit, project: Path, tmp_path: Path) -> None:
    edited = edit.apply(project, tmp_path / "edited")
    (file,) = [path for path in edited.rglob(edit.file) if path.parent.name != "tests"]
    before = project / file.relative_to(edited)
    assert file.read_text() != before.read_text()
    compile(file.read_text(), file, "exec")


def test_an_edit_that_finds_nothing_says_so(project: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"^gone: 'no_such_call\(\)' is in train.py 0 times, not once$"):
        Edit("gone", "train.py", Rewrite("no_such_call()", "")).apply(project, tmp_path / "edited")


def test_blocks_of_steps_are_compared_within_their_turn(tmp_path: Path) -> None:
    render_project(tmp_path / "project")
    found = measure(tmp_path, "tiny_mlp", blocks=2)
    assert [*found] == [PLAIN, PLAIN_STATIC, GENERATED, *OPTIONS]
    assert found[GENERATED]["ratio"] == {"median": 1, "low": 1, "high": 1}
    assert all(record["seconds"] > 0 for record in found.values())
    log = "".join(file.read_text() for file in tmp_path.glob("*/run/train.log"))
    assert f"step {3 * OF_A_BLOCK['tiny_mlp']}  train/loss" in log, "the first block does not count"
    assert ratio_to([2.0, 1.0, 4.0], [1.0, 1.0, 1.0])["ratio"] == {"median": 0.5, "low": 0.25, "high": 1}
    lines = block_table({"workloads": {"tiny_mlp": found}}).splitlines()
    assert lines[3].startswith("| fastest plain loop | ")
    assert lines[4].startswith("| fastest plain loop, static graph | ")
    assert [line.split(" | ")[0] for line in lines[5:]] == [f"| `{name}`" for name in OPTIONS]


def test_each_part_of_a_step_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.step_parts", "--rounds", "1", "--steps", "20"]
    output_of([*command, "--out", str(tmp_path / "parts.json")], TEMPLATE, os.environ)
    results = json.loads((tmp_path / "parts.json").read_text())
    assert [*results["microseconds"]] == [*STEP_PARTS]
    assert all(taken["low"] > 0 for taken in results["microseconds"].values()), "a part is not called by this name"
    first, *_ = STEP_PARTS
    results["microseconds"] = {first: {"median": 98.66, "low": 96.5, "high": 100.8}}
    assert part_table(results).splitlines()[2:] == [f"| {first} | 99 µs (96 to 101) |"]


def test_each_guard_is_measured(tmp_path: Path) -> None:
    found = measure_guards(tmp_path, "small_cnn", steps=10, loggers=["csv"])
    assert [*found] == [
        "judging each step by its gradients",
        "signs of life",
        "a progress bar on a screen",
        "the log",
        "the log and csv",
    ]
    beaten = found.pop("signs of life")  # four times a second: perhaps not once in so few steps
    assert 0 <= beaten["share"]["low"] <= beaten["share"]["high"] < 0.1
    assert all(0 < record["share"]["low"] <= record["share"]["high"] < 1 for record in found.values())
    log = (tmp_path / "run" / "train.log").read_text().splitlines()
    assert any("train/loss" in line for line in log)
    assert (tmp_path / "run" / "metrics.csv").read_text().count("train/loss") == PARTS


SPREAD = {"median": 1.25, "low": 1.2, "high": 1.3}
CONTENDER = {
    "samples_per_second": 11_156.2,
    "to_first_step": 3.14,
    "wall": 7.64,
    "peak_memory": 300 * 2**20,
    "ratio": SPREAD,
    "collectives": 1.1,
    "reads": 0.1,
}
MINIMAL = {**CONTENDER, "ratio": {"median": 1.0, "low": 1.0, "high": 1.0}}


def test_the_table_of_contenders_has_the_fastest_first() -> None:
    workloads = {"small_cnn": {"contenders": {"minimal": MINIMAL, "generated": CONTENDER, "hf_trainer_tuned": MINIMAL}}}
    lines = speed_table({"workloads": workloads}, "small_cnn").splitlines()
    cells = "11,156 | 1.25 (1.20 to 1.30) | 3.1 s | 7.6 s | 300 MiB | 1.1 | 0.1 |"
    assert lines[2] == f"| **generated project** | {cells}"
    assert lines[3].startswith("| minimal DDP loop | 11,156 | 1 |")
    assert lines[4].startswith("| Hugging Face Trainer, tuned |")
    assert versions_line({"peers": pinned_versions()}).startswith("With torch 2.")


def test_the_table_of_optimisations_leaves_empty_what_was_not_measured() -> None:
    ratios = {"as generated": SPREAD, "fewer threads": SPREAD, "no batches": SPREAD}
    heavy = {"as generated": SPREAD, "fewer threads": SPREAD}
    measured = {"small_cnn": {"memory": ratios}, "resnet": {"memory": heavy}, "wide": {"ratios": heavy}}
    lines = optimisation_table({"optimisations": measured}, "memory").splitlines()
    assert lines[0] == "| edit | `small_cnn` | `resnet` |"
    assert lines[2:] == [
        "| fewer threads | 1.25 (1.20 to 1.30) | 1.25 (1.20 to 1.30) |",
        "| no batches | 1.25 (1.20 to 1.30) |  |",
    ]


def test_the_table_of_guards_gives_percent() -> None:
    share = {"median": 0.0123, "low": -0.001, "high": 0.02}
    record = {"share": share, "microseconds": {"median": 33.3, "low": -2.0, "high": 50.0}}
    lines = guard_table({"guards": {"small_cnn": {"signs of life": record}, "resnet": {}}}).splitlines()
    assert lines[0] == "|  | `small_cnn`: a step | of its time | `resnet`: a step | of its time |"
    assert lines[2] == "| signs of life | 33 µs | 1.2% (-0.1% to 2.0%) |  |  |"
