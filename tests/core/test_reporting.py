"""What a run reports beside the metrics of its task."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.simulated import one_of, progress_of
from tests.conftest import Package


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_metrics_have_the_peak_memory_of_a_gpu(
    on_gpu: bool, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**29)
    reporting = package("runtime.reporting")
    recorded: list[dict[str, float]] = []
    with one_of(1):
        config, world = package("config").Config(run_dir=tmp_path), reporting.World(0, 0, 1, 1)
        progress = progress_of(package, config)
        checkpoints = SimpleNamespace(progress=progress, model=torch.nn.Linear(1, 1))
        reporter = reporting.Reporter(config, world, checkpoints)
    monkeypatch.setattr(reporter.tracker, "log", lambda step, metrics: recorded.append(metrics))
    reporter.started = time.perf_counter()
    reporter.log_training(progress)
    assert recorded[0].get("peak_memory_gib") == (1.5 if on_gpu else None)
