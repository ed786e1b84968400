"""What the benchmark of a GPU reads out of a trace and of its runs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders.workloads import WORKLOADS
from benchmarks.gpu import rate, waits_of_a_step
from benchmarks.runner import CommandError

WORKLOAD = WORKLOADS["resnet_gpu"]


def event(name: str, category: str, begin: float, duration: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": duration}


def test_waits_are_counted_in_the_steps_of_the_cpu_but_the_last(tmp_path: Path) -> None:
    """A trace of three steps of 10 us, which the GPU takes 25 us later."""
    steps = [event(f"ProfilerStep#{11 + i}", "user_annotation", 10.0 * i, 10.0) for i in range(3)]
    repeated = [step | {"cat": "gpu_user_annotation", "ts": step["ts"] + 25} for step in steps]
    calls = [
        event("cudaStreamSynchronize", "cuda_runtime", 3),
        event("cudaLaunchKernel", "cuda_runtime", 4),
        event("cudaMemcpyAsync", "cuda_runtime", 5),
        event("cudaMemcpy", "cuda_runtime", 6),
        event("cudaHostAlloc", "cuda_runtime", 7),
        event("cudaEventSynchronize", "cuda_runtime", 13),
        event("cuStreamSynchronize", "cuda_driver", 14),
        event("cudaDeviceSynchronize", "cuda_runtime", 28),  # the profiler's own, in the last step
    ]
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [{"ph": "M", "name": "process_name"}, *steps, *repeated, *calls]}, file)
    assert waits_of_a_step(tmp_path / "trace.json.gz") == 5 / 2


def test_a_rate_is_that_between_two_reports() -> None:
    # The CPU is ahead of the GPU but where a report, each tenth step, makes it wait.
    forwards = [1.0 * (step // 10) + 0.001 * (step % 10) for step in range(WORKLOAD.steps)]
    assert rate(forwards, WORKLOAD) == 10 * WORKLOAD.batch
    with pytest.raises(CommandError, match="trained 99 steps, not 100"):
        rate(forwards[1:], WORKLOAD)
    with pytest.raises(CommandError, match="20 steps are too few"):
        rate(forwards[:20], WORKLOAD.shortened(20))
