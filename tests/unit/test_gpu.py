"""What the benchmark of a GPU reads out of a trace, what it trains, and the pages that tell of it."""

import gzip
import json
import os
import re
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.contenders.networks import resnet_50
from benchmarks.contenders.workloads import WORKLOADS, images
from benchmarks.gpu import LAUNCHING, WAITING, calls_of_a_step
from generator.answers.questions import TEMPLATE
from tests.support.processes import output_of
from tools.docs.gpu import gpu_table
from tools.gpu import STEPS, requirements


def event(name: str, category: str, begin: float, duration: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": duration}


def test_waits_and_launches_are_counted_in_the_steps_of_the_cpu_but_the_last(tmp_path: Path) -> None:
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
        event("cuLaunchKernelEx", "cuda_driver", 15),
        event("hipLaunchKernel", "cuda_runtime", 16),
        event("cudaDeviceSynchronize", "cuda_runtime", 28),  # the profiler's own, in the last step
    ]
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [{"ph": "M", "name": "process_name"}, *steps, *repeated, *calls]}, file)
    assert calls_of_a_step(tmp_path / "trace.json.gz", WAITING) == 5 / 2
    assert calls_of_a_step(tmp_path / "trace.json.gz", LAUNCHING) == 3 / 2


def test_the_large_network_is_resnet_50_and_trains_on_one_batch() -> None:
    with torch.device("meta"):
        network = resnet_50()
        assert network(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(weight.numel() for weight in network.parameters()) == 25_557_032, "as torchvision's has"
    training, _ = replace(WORKLOADS["resnet_50"], batch=4, make_inputs=images(8)).load_data()
    assert len(training) == 4000
    inputs, labels = training.__getitems__([3999, 17, 5])
    assert torch.equal(inputs, training.inputs[:3])
    assert len(labels) == 3
    assert len(training.labels) == 4


def test_a_table_compares_blocks_of_the_same_turn_and_leaves_out_what_is_unknown() -> None:
    blocks = {"plain": [100.0, 50.0, 100.0], "generated": [99.0, 49.0, 110.0]}
    known = {"mfu": 0.375, "waits_of_a_step": 0.0, "launches_of_a_step": 161.0}
    records = [
        {"setting": setting, "contender": name, "samples_per_second": rates, **(known if setting == "new" else {})}
        for setting in ("old", "new")
        for name, rates in blocks.items()
    ]
    head, _, old, new = gpu_table({"measurements": records}).splitlines()
    assert head.count("|") == old.count("|") == 8
    assert old == "| old | 100 | 99 | 0.99 (0.98 to 1.10) |  |  |  |"
    assert new == "| new | 100 | 99 | 0.99 (0.98 to 1.10) | 38% | 0 | 161 / 161 |"


def test_the_steps_of_a_promise_exist() -> None:
    table = (
        (TEMPLATE / "docs" / "exact.md").read_text().partition("step of `scripts/gpu.sh` |\n")[2].partition("\n\n")[0]
    )
    named = [step for steps in re.findall(r"\| ([^|]+) \|$", table, re.MULTILINE) for step in steps.split(", ")]
    assert len(named) > 25
    assert {*named} <= {step.name for step in STEPS}


def installed_with(*wanted: str) -> set[str]:
    """Return the names of packages that pip installs with some others, among those of this Python."""
    names, left = set[str](), [*wanted]
    while left:
        package = Requirement(left.pop())
        if (name := canonicalize_name(package.name)) not in names:
            names.add(name)
            required = [Requirement(line) for line in metadata.requires(name) or []]
            left += [each.name for each in required if not each.marker or each.marker.evaluate({"extra": ""})]
    return names


def test_the_tests_of_the_steps_need_no_other_packages() -> None:
    names = installed_with("torch", *requirements()) | {"ddp-template"}
    packages = metadata.packages_distributions()
    others = [module for module, of in packages.items() if not names & {*map(canonicalize_name, of)}]
    assert "playwright" in others
    files = {file for step in STEPS for file in re.findall(r"tests/\S+\.py", step.commands)}
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({others})); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    plugins = ["-p", "pytest_split.plugin", "-p", "pytest_timeout"]
    found = [file for file in sorted(files) if (TEMPLATE / file).exists()]
    command = [sys.executable, "-c", code, "--collect-only", "-q", *plugins, "-m", "gpu", *found]
    printed = output_of(command, TEMPLATE, os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert "tests/nightly/exact/test_gpu.py::" in printed
