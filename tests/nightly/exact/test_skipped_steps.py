"""A step that one rank's gradients overflow in is skipped by all ranks, and a run goes on exactly around it."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.core.exact.test_resume import END, OPTIONS, assert_ends_like, stopped_at
from tests.support.forked_runs import Program, metrics, run_all
from tests.support.training import checkpoint
from tools.rewriting import extend

STEP, MICRO_BATCH, IN_EPOCH = 24, 12, 5
# Counted from the first sample of an epoch: in the second half of the second micro-batch of step 3, so on rank 1.
PLACE = 2 * STEP + MICRO_BATCH + MICRO_BATCH // 2

# Appended to data.py: one sample is brighter than all others,
BRIGHT = '''

def with_a_bright_sample(config: Any, load: Any = load_data) -> Any:
    """Mark a sample."""
    own = load(config)
    own.train.dataset.images[SAMPLE] = 7.0
    return own


load_data = with_a_bright_sample
'''
# and appended to model.py: a batch that has it gives infinite gradients.
OVERFLOW = '''

def overflowing(config: Any, build: Any = build_model) -> nn.Module:
    """Let the gradients of some batches overflow."""

    def watch(network: nn.Module, images: Any, logits: Any) -> None:
        if network.training and images[0].max() > 5:
            logits.register_hook(lambda gradient: gradient * float("inf"))

    network = build(config)
    network.register_forward_hook(watch)
    return network


build_model = overflowing
'''


@pytest.fixture(scope="module")
def place(small: Render, orders: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that computes in float16 and has a sample that makes steps overflow."""
    calm = small(BRIGHT.replace("SAMPLE", str(orders[0][PLACE])), amp="torch", logging="csv")
    project = shutil.copytree(calm, tmp_path_factory.mktemp("overflows") / "project")
    extend(project / "ddp_project" / "model.py", OVERFLOW, imports="from typing import Any\n")
    return project


def test_all_ranks_skip_an_overflow(place: Path, orders: list[list[int]], tmp_path: Path, measured: Measured) -> None:
    options = OPTIONS | {"precision": "fp16", "log_every": 1}
    run = Program(place, tmp_path / "run", options)
    calm = Program(place, tmp_path / "calm", options | {"precision": "bf16"})  # has no scaler
    [[ended], _] = run_all([[run], [calm]])
    places = [order.index(orders[0][PLACE]) for order in orders]
    # The steps, counted from 1, whose batches hold the sample.
    skips = [epoch * IN_EPOCH + place // STEP + 1 for epoch, place in enumerate(places) if place < 108]
    assert skips[0] == 3
    for rank in ended.seen:
        scales = [65536.0, *(scale for scale, _ in rank.scales)]
        assert [step for step, (before, after) in enumerate(pairwise(scales), start=1) if after < before] == skips
        trail = [step.weights for step in rank.steps]
        assert len(trail) == END - len(skips), "the optimizer is not asked for a step that is skipped"
        assert all(one != other for one, other in pairwise(trail))
    assert [step.weights for step in ended.seen[0].steps] == [step.weights for step in ended.seen[1].steps]
    saved = checkpoint(run.run_dir)
    assert saved["progress"]["step"] == END, "steps are counted, whether they are skipped or not"
    assert saved["progress"]["samples_seen"] == 3 * 108
    assert {entry["step"].item() for entry in saved["optimizer"]["state"].values()} == {END - len(skips)}
    assert metrics(run.run_dir)["lr"] == metrics(calm.run_dir)["lr"], "the schedule goes on"
    measured("skipped", "steps skipped by both ranks together, of 15", len(skips))


def test_stopped_around_a_skipped_step_it_ends_the_same(place: Path, tmp_path: Path, measured: Measured) -> None:
    whole = Program(place, tmp_path / "whole", OPTIONS | {"precision": "fp16"})
    sequences = [stopped_at(whole, stop) for stop in range(1, END)]
    run_all([[whole], *sequences])
    for programs in sequences:
        assert_ends_like(whole, programs[-1])
    measured("skipped", "stops around them, after which a run ended the same", len(sequences))
