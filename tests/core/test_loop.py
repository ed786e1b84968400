"""What the training loop costs and reports: its collectives, its memory and the layout of numbers in it."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.simulated import one_of
from tests.conftest import Package, Render
from tests.support.ranks import collectives_of_an_epoch, gradients_beside_buckets, on_two_ranks, train_on_ranks
from tests.support.training import checkpoint


def test_one_reduction_a_step_and_one_a_report(project: Render, tmp_path: Path) -> None:
    # 1,437 samples in micro-batches of 16 are 89, in windows of 3 are 30 steps; reports after 7, 14, 21, 28 and 30.
    chosen = {"run_dir": tmp_path / "run", "global_batch_size": 48, "accum_steps": 3, "log_every": 7}
    for counted in on_two_ranks(collectives_of_an_epoch, tmp_path, project(), chosen):
        # The others come once: DDP agrees on the order of its buckets, and the ranks on the names of the metrics.
        assert counted == {"gloo:all_reduce": 30 + 5, "gloo:broadcast": 2, "gloo:all_gather": 2}


def test_gradients_of_micro_batches_take_no_memory_beside_ddps_buckets(project: Render, tmp_path: Path) -> None:
    chosen = {"run_dir": tmp_path, "global_batch_size": 360, "accum_steps": 3}
    for found in on_two_ranks(gradients_beside_buckets, tmp_path, project(), chosen):
        assert found["in buckets"] == 0
        assert found["fresh"] > 0.9 * found["weights"], "those of micro-batches before the last one"


def test_channels_last_changes_the_layout_alone(project: Render, tmp_path: Path) -> None:
    assert_the_layout_may_change(project(), tmp_path)


def assert_the_layout_may_change(project: Path, tmp_path: Path, *options: str) -> None:
    """Change it at a resume; a fused optimizer pairs weights and moments by their place in memory."""
    train_on_ranks(project, tmp_path / "first", *options, "--max-steps", "13")
    source = str(tmp_path / "first" / "checkpoints" / "last.pt")
    for option in ("--channels-last", "--no-channels-last"):
        train_on_ranks(project, tmp_path / option, *options, "--resume", source, "--max-steps", "14", option)
    changed, same = (checkpoint(tmp_path / option)["model"] for option in ("--channels-last", "--no-channels-last"))
    for name, weight in same.items():
        torch.testing.assert_close(changed[name], weight, rtol=1e-4, atol=1e-5)
        if weight.ndim == 4 and weight.shape[1] > 1:
            layouts = [each[name].is_contiguous(memory_format=torch.channels_last) for each in (changed, same)]
            assert layouts == [True, False]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_metrics_have_the_peak_memory_of_a_gpu(
    on_gpu: bool, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**29)
    reporting, progress = package("runtime.reporting"), package("runtime.meter").Progress()
    recorded: list[dict[str, float]] = []
    with one_of(1):
        config, world = package("config").Config(run_dir=tmp_path), reporting.World(0, 0, 1, 1)
        checkpoints = SimpleNamespace(progress=progress, model=torch.nn.Linear(1, 1))
        reporter = reporting.Reporter(config, world, checkpoints)
    monkeypatch.setattr(reporter.tracker, "log", lambda step, metrics: recorded.append(metrics))
    reporter.started = time.perf_counter()
    reporter.log_training(progress, lr=0.1)
    assert recorded[0].get("peak_memory_gib") == (1.5 if on_gpu else None)
