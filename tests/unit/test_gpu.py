"""What the benchmark of a GPU reads out of a trace and of its runs, and what it keeps of an earlier start."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders.workloads import WORKLOADS
from benchmarks.failures import CommandError
from benchmarks.gpu import SETTINGS, Results, rate, waits_of_a_step
from tools.docs.check import NOT_MEASURED
from tools.docs.starting import gpu_table
from tools.gpu import SPEED

WORKLOAD = WORKLOADS["resnet_gpu"]
SETTING = {
    "samples_per_second": {"plain": [1000.0, 1002.0], "generated": [990.0, 994.0]},
    "ratio": {"median": 0.991, "low": 0.99, "high": 0.992},
    "waits_of_a_step": 0.0,
}


def event(name: str, category: str, begin: float, duration: float = 1.0) -> dict[str, Any]:
    """An event of a trace that lasts."""
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": duration}


def trace(folder: Path, *events: dict[str, Any]) -> Path:
    """A trace of three steps of 10 us, which the GPU takes 25 us later, with some more events."""
    steps = [event(f"ProfilerStep#{11 + i}", "user_annotation", 10.0 * i, 10.0) for i in range(3)]
    repeated = [step | {"cat": "gpu_user_annotation", "ts": step["ts"] + 25} for step in steps]
    with gzip.open(folder / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [{"ph": "M", "name": "process_name"}, *steps, *repeated, *events]}, file)
    return folder / "trace.json.gz"


def test_waits_are_counted_in_the_steps_of_the_cpu_but_the_last(tmp_path: Path) -> None:
    file = trace(
        tmp_path,
        event("cudaStreamSynchronize", "cuda_runtime", 3),
        event("cudaLaunchKernel", "cuda_runtime", 4),
        event("cudaEventSynchronize", "cuda_runtime", 13),
        event("cuStreamSynchronize", "cuda_driver", 14),
        event("cudaDeviceSynchronize", "cuda_runtime", 28),  # the profiler's own, in the last step
    )
    assert waits_of_a_step(file) == 3 / 2


def test_what_the_gpu_says_of_a_wait_counts_no_wait(tmp_path: Path) -> None:
    file = trace(tmp_path, event("cudaStreamSynchronize", "cuda_sync", 3), event("Stream Synchronize", "cuda_sync", 3))
    assert waits_of_a_step(file) == 0


def test_a_rate_is_that_between_two_reports() -> None:
    # The CPU is ahead of the GPU but where a report, each tenth step, makes it wait.
    forwards = [1.0 * (step // 10) + 0.001 * (step % 10) for step in range(WORKLOAD.steps)]
    assert rate(forwards, WORKLOAD) == 10 * WORKLOAD.batch
    with pytest.raises(CommandError, match="trained 99 steps, not 100"):
        rate(forwards[1:], WORKLOAD)
    with pytest.raises(CommandError, match="20 steps are too few"):
        rate(forwards[:20], WORKLOAD.shortened(20))


def test_results_are_gone_on_with_on_the_same_machine_alone(tmp_path: Path) -> None:
    first, *_, last = SETTINGS
    Results(tmp_path / "gpu.json", {"machine": {"gpu": "A"}}).add(last, {"ratio": 1})
    other = Results(tmp_path / "gpu.json", {"machine": {"gpu": "B"}})
    same = Results(tmp_path / "gpu.json", {"machine": {"gpu": "A"}})
    assert (other.settings, same.settings) == ({}, {last: {"ratio": 1}})
    same.add(first, {"ratio": 2})
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert [*written["settings"]] == [first, last]
    assert [*tmp_path.iterdir()] == [tmp_path / "gpu.json"]


def test_the_table_has_the_settings_that_were_measured() -> None:
    head, _, row = gpu_table({"settings": {"bfloat16": SETTING}}).splitlines()
    assert head.count("|") == row.count("|")
    assert row == "| bfloat16 | 1,001 | 992 | 0.99 (0.99 to 0.99) | 0 |"
    assert gpu_table({"settings": {}}) == NOT_MEASURED


def test_every_setting_has_a_step_of_its_own() -> None:
    assert sorted(SPEED) == sorted(SETTINGS)
