"""What a GPU must do as a CPU does. Without a GPU, most of it runs on the CPU, which shows that the tests are sound."""

import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import read_trace
from tests.conftest import Render
from tests.core.exact.test_processes import CLIP_NORM, OPTIONS, UNEVEN, recipe
from tests.core.faults.test_disks import train_on_a_slow_disk
from tests.core.faults.test_kills import assert_kills_lose_one_interval
from tests.core.test_layout import assert_the_layout_may_change
from tests.core.test_statistics import LAYERS
from tests.nightly.exact.test_bad_steps import BAD_STEPS, IMPORTS, SGD, SPOILING, all_finite
from tests.nightly.exact.test_ddp_options import train_as_with_nccl
from tests.support import reference
from tests.support.forked_runs import relative_difference
from tests.support.ranks import run_train, train_on_ranks
from tests.support.training import (
    HAS_GPU,
    NEEDS_GPU,
    ON_DEVICE,
    ON_GPU,
    assert_same_weights,
    checkpoint,
    differences,
    train,
)
from tools.rewriting import Rewrite, extend

pytestmark = pytest.mark.gpu
EXACTLY = (*ON_DEVICE, "--deterministic")
ON_FLOAT32 = (*ON_DEVICE, "--precision", "float32")
STEPS = ("--max-steps", "12")


# ---- the memory, the disk ----

# Appended to task.py: each step takes 4 GiB and keeps them.
HOARDING = """

def hoarding(model: nn.Module, batch: Any, compute: Any = compute) -> dict[str, Mean]:
    hoard.append(torch.empty(2**32, dtype=torch.uint8, device=batch[0].device))
    return compute(model, batch)


hoard: list[torch.Tensor] = []
compute = hoarding
"""


@NEEDS_GPU
def test_a_full_gpu_ends_the_run_with_one_line(own_project: Render, tmp_path: Path) -> None:
    project = own_project()
    extend(project / "ddp_project" / "task.py", HOARDING, imports="import torch\n")
    printed = train(project, tmp_path / "run", *ON_GPU, launcher="alone", code=2)
    [error] = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: rank 0 is out of memory: raise --accum-steps")
    assert "Traceback" not in printed


def test_kills_beside_saves_that_are_not_waited_for_lose_one_interval(project: Render, tmp_path: Path) -> None:
    assert_kills_lose_one_interval(6, project(), tmp_path, lambda *_: None, "--async-saves", *EXACTLY)


def test_a_save_may_take_long(project: Render, tmp_path: Path) -> None:
    """Longer than a collective may wait."""
    options = (*ON_DEVICE, "--max-steps", "2", "--timeout", "5")
    train_on_ranks(project(), tmp_path / "run", *options, entry=train_on_a_slow_disk)
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 2


# ---- the options of DistributedDataParallel ----


@pytest.mark.parametrize("option", [("--static-graph",), ("--bucket-mib", "1")], ids=" ".join)
def test_how_gradients_are_sent_changes_no_bit(option: tuple[str, ...], project: Render, tmp_path: Path) -> None:
    for name, given in {"run": option, "plain": ()}.items():
        train_on_ranks(project(), tmp_path / name, *EXACTLY, *STEPS, *given)
    assert_same_weights(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "plain"))


def test_gradients_may_travel_in_bfloat16(project: Render, tmp_path: Path) -> None:
    """On one process: NCCL wants a GPU for each."""
    options, entry = (ON_GPU, run_train) if HAS_GPU else ((), train_as_with_nccl)
    for name, given in {"rounded": ["--bf16-gradients"], "exact": []}.items():
        train_on_ranks(project(), tmp_path / name, *options, *STEPS, *given, processes=1, entry=entry)
    rounded, exact = (checkpoint(tmp_path / name)["model"]["classifier.2.weight"] for name in ("rounded", "exact"))
    assert rounded.dtype == torch.float32
    assert 1e-6 < (rounded - exact).norm() / exact.norm() < 0.05


# ---- steps ----


@pytest.mark.parametrize(
    ("optimizer", "answers", "options"),
    [
        ("", {}, ()),
        (SGD, {}, ()),
        ("", {"amp": "torch"}, ("--precision", "fp16")),
        (SGD, {"amp": "torch"}, ("--precision", "fp16")),
        ("", {"amp": "torch"}, ("--precision", "bf16")),
    ],
    ids=["fused", "not fused", "float16", "float16, not fused", "bfloat16"],
)
def test_bad_steps_leave_no_trace(
    optimizer: str, answers: dict[str, str], options: tuple[str, ...], own_project: Render, tmp_path: Path
) -> None:
    project = own_project(**answers)
    extend(project / "ddp_project" / "data.py", SPOILING, imports=IMPORTS)
    if optimizer:
        Rewrite("AdamW($$$A)", optimizer).apply(project / "ddp_project" / "task.py")
    options = (*EXACTLY, "--epochs", "1", "--save-every", "1", "--keep", "99", "--log-every", "1", *options)
    for rank in ("0", "1"):
        spoiled = {"SPOILED": f"{rank} {','.join(map(str, BAD_STEPS))} nan"}
        train_on_ranks(project, tmp_path / rank, *options, env=spoiled)
        log = (tmp_path / rank / "train.log").read_text()
        for step in BAD_STEPS:
            assert f"step {step}  steps left out, since their gradients were not finite: 1" in log
            before, after = (checkpoint(tmp_path / rank, f"step-{each:08d}.pt") for each in (step - 1, step))
            assert differences(before["model"], after["model"]) == [], "the step has left a trace"
            assert differences(before["optimizer"]["state"], after["optimizer"]["state"]) == []
    one, other = (checkpoint(tmp_path / rank) for rank in ("0", "1"))
    assert all_finite(one)
    for part in ("model", "optimizer", "ranks"):
        assert differences(one[part], other[part]) == [], f"{part}: it is of account whose numbers were bad"


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_uneven_counts_arrive_where_plain_pytorch_does(
    accum_steps: int, own_project: Render, orders: list[list[int]], tmp_path: Path
) -> None:
    project = own_project()
    (project / "ddp_project" / "data.py").write_text(reference.DATA)
    (project / "ddp_project" / "model.py").write_text(reference.MODEL)
    UNEVEN.apply(project / "ddp_project" / "task.py")
    given = OPTIONS | {"accum_steps": accum_steps}
    options = (word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    train_on_ranks(project, tmp_path / "run", *ON_FLOAT32, *options)
    expected, _ = reference.train(recipe(accum_steps, CLIP_NORM), orders, ignored=0)
    assert (
        relative_difference(checkpoint(tmp_path / "run")["model"], expected) <= 1e-4
    ), "a GPU adds up in another order"


# ---- who has which GPU ----


def train_in_spite_of_it() -> None:
    """What a rank does that does not look whether another has its GPU."""
    placement: Any = importlib.import_module("ddp_project.runtime.placement")
    placement.problem_of = lambda places, gpus: None
    run_train()


def train_without_a_gpu_on_rank_1() -> None:
    """What a rank does that is on a machine without a GPU if it is rank 1."""
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
def test_what_cannot_work_together_is_told_in_one_line(
    case: str, project: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    entry, expected = REFUSALS[case]
    options = ("--device", "cuda", "--backend", "auto")
    printed = train_on_ranks(project(), tmp_path / "run", *options, entry=entry, code=2)
    errors = [line for text in printed for line in text.splitlines() if line.startswith("error: ")]
    assert any(expected in error for error in errors), printed


# ---- kernels, streams, layouts ----


@NEEDS_GPU
def test_statistics_take_few_kernels(package: Callable[..., Any]) -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(LAYERS))).cuda()
    statistics = package("runtime.update").Statistics(model)
    bad = torch.tensor(False, device="cuda")
    statistics.restore_if(bad)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        statistics.restore_if(bad)
        torch.cuda.synchronize()
    kernels = [event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 0 < len(kernels) <= 24, Counter(kernels)  # one of a list takes some tens of tensors; one by one it were 318


@NEEDS_GPU
def test_batches_are_copied_in_a_stream_of_their_own_and_memory_is_told(project: Render, tmp_path: Path) -> None:
    options = ("--epochs", "1", "--profile")
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
