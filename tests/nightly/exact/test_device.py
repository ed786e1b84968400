"""What a GPU must do as a CPU does. Without a GPU, most of it runs on the CPU, which shows that the tests are sound."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import read_trace
from tests.conftest import Package, Render
from tests.core.exact.test_contrastive import COMPUTE, trained_plainly
from tests.core.exact.test_processes import CLIP_NORM, OPTIONS, UNEVEN, recipe
from tests.core.test_loop import assert_the_layout_may_change
from tests.core.test_statistics import LAYERS
from tests.support import reference
from tests.support.forked_runs import owned_by, relative_difference, words
from tests.support.ranks import error_in, run_train, train_on_ranks, wrap
from tests.support.reference import Orders
from tests.support.training import NEEDS_GPU, ON_DEVICE, ON_GPU, checkpoint, train
from tools.rewriting import extend

pytestmark = pytest.mark.gpu
ON_FLOAT32 = (*ON_DEVICE, "--precision", "float32")


# Appended to task.py: each step takes 4 GiB and keeps them.
HOARDING = """

def hoarding(model: nn.Module, batch: Any, config: Any, compute: Any = compute) -> dict[str, Mean]:
    hoard.append(torch.empty(2**32, dtype=torch.uint8, device=batch[0].device))
    return compute(model, batch, config)


hoard: list[torch.Tensor] = []
compute = hoarding
"""


@NEEDS_GPU
def test_a_full_gpu_ends_the_run_with_one_line(own_project: Render, tmp_path: Path) -> None:
    project = own_project()
    extend(project / "ddp_project" / "task.py", HOARDING, imports="import torch\n")
    printed = train(project, tmp_path / "run", *ON_GPU, launcher="alone", code=2)
    assert error_in([printed]).startswith("error: rank 0 is out of memory: raise --accum-steps")


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_uneven_counts_arrive_there(accum_steps: int, project: Render, orders: Orders, tmp_path: Path) -> None:
    place = owned_by(project(), reference.MODEL, tmp_path / "project")
    UNEVEN.apply(place / "ddp_project" / "task.py")
    train_on_ranks(place, tmp_path / "run", *ON_FLOAT32, *words(OPTIONS | {"accum_steps": accum_steps}))
    expected, _ = reference.train(recipe(accum_steps, CLIP_NORM), orders, ignored=0)
    assert relative_difference(checkpoint(tmp_path / "run")["model"], expected) <= 1e-4, "it adds in another order"


def test_rows_of_all_ranks_are_compared_there(project: Render, orders: Orders, tmp_path: Path) -> None:
    place = owned_by(project(), reference.MODEL, tmp_path / "project")
    extend(place / "ddp_project" / "task.py", COMPUTE, imports="from .runtime import gather_with_grad\n")
    train_on_ranks(place, tmp_path / "run", *ON_FLOAT32, *words(OPTIONS))
    difference = relative_difference(checkpoint(tmp_path / "run")["model"], trained_plainly(orders))
    assert difference <= 1e-4, "it adds in another order"


def train_in_spite_of_it() -> None:
    """What a rank does that does not look whether another has its GPU."""
    wrap("runtime.devices.problem_of", lambda problem_of: lambda places, gpus: None)
    run_train()


def train_without_a_gpu_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        sys.argv += ["--device", "cpu"]
    run_train()


REFUSALS = {
    "a GPU of its own": (run_train, "rank 0 and rank 1 have the same GPU of "),
    "NCCL's own words": (train_in_spite_of_it, "Duplicate GPU detected"),
    "no GPU is named": (train_without_a_gpu_on_rank_1, "the ranks must use the same backend, not nccl on rank 0 ("),
}


@NEEDS_GPU
@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_work_together_is_told(
    case: str, project: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    entry, expected = REFUSALS[case]
    options = ("--device", "cuda", "--backend", "auto")
    printed = train_on_ranks(project(), tmp_path / "run", *options, entry=entry, code=2)
    errors = [line for text in printed for line in text.splitlines() if line.startswith("error: ")]
    assert any(expected in error for error in errors), printed


@NEEDS_GPU
def test_statistics_take_few_kernels(package: Package) -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(LAYERS))).cuda()
    statistics = package("runtime.optimizer_step").BatchNormSnapshot(model)
    bad = torch.tensor(False, device="cuda")
    statistics.restore_if(bad)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        statistics.restore_if(bad)
        torch.cuda.synchronize()
    kernels = [event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 0 < len(kernels) <= 24, Counter(kernels)  # one of a list takes some tens of tensors; one by one it were 318


@NEEDS_GPU
def test_batches_are_copied_in_a_stream_of_their_own_and_memory_is_told(project: Render, tmp_path: Path) -> None:
    options = ("--epochs", "1", "--workers", "1", "--profile")
    train(project(), tmp_path / "run", *ON_GPU, *options, launcher="alone")
    events = read_trace(tmp_path / "run" / "trace.json.gz")
    streams = {
        kind: {event["args"]["stream"] for event in events if event.get("cat") == kind and words in event["name"]}
        for kind, words in {"kernel": "", "gpu_memcpy": "Pinned -> Device"}.items()
    }
    assert streams["gpu_memcpy"], "no batch is copied from pinned memory"
    assert not streams["gpu_memcpy"] & streams["kernel"], json.dumps({name: [*each] for name, each in streams.items()})
    assert "peak_memory_gib" in (tmp_path / "run" / "train.log").read_text()


def test_loaded_moments_lie_as_their_weights_do(project: Render, tmp_path: Path) -> None:
    assert_the_layout_may_change(project(), tmp_path, *ON_FLOAT32)
