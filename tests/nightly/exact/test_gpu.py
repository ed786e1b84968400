"""What only a GPU can show. test_precision.py has mixed precision there."""

from pathlib import Path

import pytest

from benchmarks.gpu import WAITING, calls_of_a_step
from generator.check.train.verification import OF_EVALUATIONS
from tests.conftest import Render
from tests.support import reference
from tests.support.forked_runs import owned_by, relative_difference, state
from tests.support.ranks import on_two_ranks, weights_of_an_epoch_on_a_gpu
from tests.support.training import NEEDS_GPU, ON_GPU, differences, train

pytestmark = [pytest.mark.gpu, NEEDS_GPU]


def test_sync_batch_norm_equals_batch_norm_of_one(project: Render, orders: list[list[int]], tmp_path: Path) -> None:
    """Both processes use one GPU and Gloo, since NCCL wants a GPU for each."""
    place = owned_by(project(sync_bn=True), reference.BATCH_NORM_MODEL, tmp_path / "project")
    options = {"run_dir": tmp_path / "run", "global_batch_size": 24, "epochs": 1, "lr": 0.01, "warmup_steps": 2}
    recipe = reference.Recipe(24, 24, epochs=1, warmup=2, lr=0.01, clip_norm=0.0)
    expected = reference.train(recipe, orders[:1], parts=1)[0]
    for weights in on_two_ranks(weights_of_an_epoch_on_a_gpu, tmp_path, place, options):
        assert relative_difference(weights, expected) <= 1e-4, "a GPU adds up in another order"


def test_a_resumed_run_with_nccl_ends_the_same(project: Render, tmp_path: Path) -> None:
    options = (*ON_GPU, "--deterministic")
    train(project(), tmp_path / "whole", *options, "--max-steps", "30", launcher="alone")
    train(project(), tmp_path / "stopped", *options, "--max-steps", "13", launcher="alone")
    train(project(), tmp_path / "stopped", *options, "--max-steps", "30", "--resume", launcher="alone")
    one, other = state(tmp_path / "whole"), state(tmp_path / "stopped")
    for name in OF_EVALUATIONS:
        one["progress"].pop(name), other["progress"].pop(name)
    assert differences(one, other) == []


def test_a_step_without_a_report_does_not_wait_for_the_gpu(project: Render, tmp_path: Path) -> None:
    """Neither for its loss nor for the norm of its gradients: the CPU can prepare the next step meanwhile."""
    options = ("--epochs", "1", "--log-every", "1000", "--profile")
    train(project(), tmp_path / "run", *ON_GPU, *options, launcher="alone")
    assert calls_of_a_step(tmp_path / "run" / "trace.json.gz", WAITING) == 0
