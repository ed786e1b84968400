"""The training loop against independent oracles: its collectives, and the weights that plain PyTorch arrives at."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .conftest import Render
from .loop_ranks import collectives_of_an_epoch, on_two_ranks, weights_after_an_epoch

# 3,000 samples would hide the tail; 103 leave one in the last window, after 12 micro-batches of 8.
PLAIN_DATA = """
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset


def load_data() -> tuple[Dataset[tuple[Tensor, ...]], Dataset[tuple[Tensor, ...]]]:
    rng = torch.Generator().manual_seed(7)
    images, labels = torch.randn(103, 5, generator=rng), torch.randint(0, 3, (103,), generator=rng)
    return TensorDataset(images, labels), TensorDataset(images, labels)
"""
PLAIN_MODEL = """
from torch import nn


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
"""


def options(tmp_path: Path, **others: Any) -> dict[str, Any]:
    """Options of a run in the test's folder."""
    return {"run_dir": tmp_path / "run", **others}


def test_one_reduction_a_step_and_one_a_report(project: Render, tmp_path: Path) -> None:
    # 1,437 samples in micro-batches of 16 are 89, in windows of 3 are 30 steps; reports after 7, 14, 21, 28 and 30.
    chosen = options(tmp_path, global_batch_size=48, accum_steps=3, log_every=7)
    for counted in on_two_ranks(collectives_of_an_epoch, tmp_path, project(), chosen):
        # The two broadcasts come once, after the first step: DDP agrees on the order of its buckets.
        assert counted == {"gloo:all_reduce": 30 + 5, "gloo:broadcast": 2}


@pytest.fixture
def plain_project(own_project: Callable[..., Path]) -> Path:
    """The default project with an owner's model, without BatchNorm and dropout, and data, without augmentation."""
    place = own_project()
    (place / "ddp_project" / "data.py").write_text(PLAIN_DATA)
    (place / "ddp_project" / "model.py").write_text(PLAIN_MODEL)
    return place


def plain_loop(order: list[int], batch: int, accum_steps: int, clip_norm: float, epochs: int) -> dict[str, Tensor]:
    """One epoch of one process that knows nothing of ranks, over samples in the given order."""
    rng = torch.Generator().manual_seed(7)
    images, labels = torch.randn(103, 5, generator=rng), torch.randint(0, 3, (103,), generator=rng)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    micro_batch = batch // accum_steps
    used = order[: len(order) // micro_batch * micro_batch]
    windows = [used[start : start + batch] for start in range(0, len(used), batch)]
    for step, window in enumerate(windows):
        total = epochs * len(windows)
        warm_up, cosine = (step + 1) / 5, (1 + math.cos(math.pi * (step - 5) / (total - 5))) / 2
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (warm_up if step < 5 else cosine)
        optimizer.zero_grad()
        F.cross_entropy(model(images[window]), labels[window]).backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(("accum_steps", "clip_norm"), [(1, 0.0), (2, 0.05), (3, 0.05)])
def test_two_ranks_arrive_where_plain_pytorch_does(
    accum_steps: int, clip_norm: float, plain_project: Path, tmp_path: Path
) -> None:
    batch, epochs = 8 * accum_steps, 3
    chosen = options(tmp_path, global_batch_size=batch, accum_steps=accum_steps, clip_norm=clip_norm)
    chosen |= {"lr": 1e-2, "warmup_steps": 5, "epochs": epochs}
    order = torch.randperm(103, generator=torch.Generator().manual_seed(hash((0, 0)))).tolist()
    expected = plain_loop(order, batch, accum_steps, clip_norm, epochs)
    for weights in on_two_ranks(weights_after_an_epoch, tmp_path, plain_project, chosen):
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, rtol=1e-5, atol=1e-6)
