"""A step on a GPU, shown without one: its tensors have no values, so no step can read one, and stay on one device."""

import importlib
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.conftest import Render

SGD = "torch.optim.SGD(model.parameters(), lr=0.1, fused=False)"  # for which the CPU waits


class Driver(_DummyBackendModule):
    """What torch asks about the device: not there, so that fake tensors never try to use it."""

    def is_available(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class Operations(TorchDispatchMode):
    """Notes the name of each operation, and of those with tensors of several devices, whether the CPU waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.kernels = 0  # that are started
        self.crossings: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        self.kernels += func.namespace == "aten" and not func.is_view and "empty" not in str(func)
        if len({leaf.device for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)}) > 1:
            self.crossings.append((str(func), not (kwargs or {}).get("non_blocking")))
        return out


@contextmanager
def run_on_gpu(options: dict[str, Any], optimizer: str = "") -> Iterator[Any]:
    """A run as train.py has it, on such a GPU, but without DistributedDataParallel, whose C++ needs memory."""
    train, gpu = importlib.import_module("train"), torch.device("gpu", 0)
    config = train.Config(**options)
    run = SimpleNamespace(train=train, config=config, device=gpu)
    run.training = train.data_loading.load(config, train.launcher.DistEnv(0, 0, 1, 1), gpu).training
    train.metrics.AT_ONCE = 4
    averaging: Any = sys.modules[train.optimizer_step.ExponentialMovingAverage.__module__]
    averaging.places_with_infinity = lambda weights: []  # it waits, but before the first step
    with FakeTensorMode(allow_non_fake_inputs=True):
        with gpu:
            run.model = model = importlib.import_module("ddp_project.model").build_model(config)
        run.sums = train.metrics.MetricAccumulator(gpu, finite_only=True)
        run.progress = train.metrics.Progress(config, run.training.sampler)
        run.optimizer = eval(optimizer) if optimizer else train.task.build_optimizer(model, config)
        run.ddp = train.optimizer_step.LossModule(train.task.compute, model, config, gpu)
        run.ddp.no_sync = nullcontext
        wrapped: Any = SimpleNamespace(module=run.ddp, _check_reducer_finalized=lambda: None)
        run.update = train.optimizer_step.Update(wrapped, run.optimizer, config, gpu)
        run.scaler = train.optimizer_step.GradScaler(gpu.type, enabled=config.precision == "fp16")
        yield run


def steps_of(run: Any) -> Iterator[Operations]:
    """Take four steps, and yield the operations of each."""
    for _step, micro_batches in zip(range(4), run.training.steps_from(run.progress), strict=False):
        loaded = run.train.data_loading.MicroBatches(iter([*micro_batches]), len(micro_batches), 0)
        with Operations() as operations:
            run.train.train_step(run, loaded)
        yield operations


def take_steps(options: dict[str, Any], optimizer: str = "") -> None:
    with run_on_gpu({"accum_steps": 2, "clip_norm": 1.0, **options}, optimizer) as run:
        for operations in steps_of(run):
            assert {"aten._fused_adamw_.default", "aten.convolution_backward.default"} <= operations.names
            # Counts that are numbers come every 64 batches.
            assert {*operations.crossings} <= {("aten._to_copy.default", False)}


def count_kernels() -> None:
    with run_on_gpu({"precision": "bf16"}) as run:
        _first, _second, operations, _fourth = steps_of(run)
        [batch] = next(run.training.steps_from(run.progress))
        with Operations() as plain:
            with run.train.optimizer_step.autocast(run.config, run.device):
                loss = run.train.task.compute(run.model, batch, run.config)["loss"]
            (loss.sum / loss.count).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    further = operations.kernels - plain.kernels
    assert 0 < further <= 18, f"{further} kernels more than those of a plain loop"


TRIALS: dict[str, Callable[[], None]] = {
    "float32": partial(take_steps, {"precision": "float32"}),
    "bf16": partial(take_steps, {"precision": "bf16"}),
    "fp16": partial(take_steps, {"precision": "fp16", "ema_decay": 0.9}),
    "SGD": partial(take_steps, {}, SGD),
    "kernels": count_kernels,
}


def try_all(_: int, project: Path, errors: Path) -> None:
    """Make such a GPU, which no other test must have, and write the traceback of each trial that fails."""
    _setup_privateuseone_for_python_backend("gpu", Driver())
    every_operation = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")  # as long as it is referred to
    every_operation.fallback(torch.library.fallthrough_kernel)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sys.path.insert(0, str(project))
    found = dict.fromkeys(TRIALS, "")
    for name, work in TRIALS.items():
        try:
            work()
        except Exception:
            found[name] = traceback.format_exc()
    errors.write_text(json.dumps(found))


@pytest.fixture(scope="module")
def errors(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("trials") / "errors.json"
    mp.spawn(try_all, (project(), file))
    found: dict[str, str] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_the_cpu_waits_for_nothing_in_a_step(precision: str, errors: dict[str, str]) -> None:
    assert errors[precision] == ""


def test_it_waits_for_an_optimizer_that_cannot_leave_a_step_out(errors: dict[str, str]) -> None:
    assert re.search(r"isfinite\(norm\)[\s\S]*DataDependentOutput", errors["SGD"])


def test_a_step_starts_few_kernels_more_than_a_plain_loop(errors: dict[str, str]) -> None:
    assert errors["kernels"] == ""
