"""A checkpoint holds each buffer once, and for each rank only what ranks differ in; nothing constant is averaged."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Package, Render
from tests.support.ranks import assert_same_state, train_on_ranks
from tests.support.training import checkpoint

LOWEST = torch.finfo(torch.float32).min
HEAD = """
import torch
import torch.distributed as dist
from torch import Tensor, nn


def build_model(config: object) -> nn.Module:
    return Network()


"""
# Layers with masks, frozen weights that are none, and 10 MB of weights.
MASKED = HEAD + """class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 1600), nn.Tanh(), nn.Linear(1600, 1500), nn.Tanh())
        self.head = nn.Linear(1500, 10)
        mask = torch.full((512, 512), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("lowest", mask)
        self.register_buffer("infinite", mask.masked_fill(mask < 0, -torch.inf))
        self.register_buffer("kept_out", torch.ones(1024, 1024), persistent=False)
        self.codes = nn.Parameter(torch.arange(8, dtype=torch.uint8), requires_grad=False)
        self.frozen = nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
        self.packed = nn.Parameter(torch.arange(4, dtype=torch.int16), requires_grad=False)
        self.eighths = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("graph", torch.eye(3).to_sparse())
        self.register_buffer("passing", torch.eye(3).to_sparse(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))
"""
# Tables that are as long as they must be, which is longer on rank 1, and another that is not saved.
GROWING = HEAD + """class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.steps = 0
        self.register_buffer("table", torch.zeros(1))
        self.register_buffer("late", None)
        self.register_buffer("running_scores", torch.zeros(0))
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            length = self.steps * (1 + dist.get_rank()) + 1
            self.table = torch.arange(float(length))
            self.late = torch.ones(2)
            self.running_scores = self.table + 0.5
            self.unsaved = torch.zeros(length)
        return self.head(images.flatten(1))
"""
# A layer of the owner's, which follows its input, before a linear one.
OWN = HEAD + """class Tracker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_level", torch.zeros(3))
        self.register_buffer("queue", torch.zeros(4))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("spectrum", torch.zeros(2, dtype=torch.complex64))

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.running_level += values.detach().mean()
            self.spectrum = self.spectrum + values.detach().mean() * (1 + 2j)
            self.queue[self.place % 4] = values.detach().mean()
            self.place += 1 + (dist.get_rank() if dist.is_initialized() else 0)
        return values


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.tracker(images.flatten(1)))
"""


def with_model(own_project: Render, model: str) -> Path:
    place = own_project()
    (place / "ddp_project" / "model.py").write_text(model)
    return place


def test_masks_are_in_a_checkpoint_once_and_as_they_are(own_project: Render, tmp_path: Path) -> None:
    project = with_model(own_project, MASKED)
    runs = [tmp_path / "one", tmp_path / "two"]
    for ranks, run_dir in enumerate(runs, start=1):
        train_on_ranks(project, run_dir, "--max-steps", "2", processes=ranks)
        saved = checkpoint(run_dir)
        assert saved["ranks"]["buffers"] == {}
        assert "kept_out" not in saved["model"]
        lowest, infinite = saved["model"]["lowest"], saved["model"]["infinite"]
        assert torch.equal(lowest, torch.full((512, 512), LOWEST).triu(1))
        assert torch.equal(infinite == -torch.inf, lowest == LOWEST)
    one, two = ((run_dir / "checkpoints" / "last.pt").stat().st_size for run_dir in runs)
    assert two <= 1.05 * one
    train_on_ranks(project, runs[1], "--max-steps", "3", "--resume")


def test_buffers_that_grow_are_resumed_on_two_ranks_and_on_one(own_project: Render, tmp_path: Path) -> None:
    project = with_model(own_project, GROWING)
    run_dir = tmp_path / "run"
    train_on_ranks(project, run_dir, "--max-steps", "2")
    saved = checkpoint(run_dir)
    assert saved["grown_buffers"] == {"table": [1], "late": None, "running_scores": [0]}
    assert [each.tolist() for each in saved["ranks"]["buffers"]["table"]] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert saved["model"]["table"].tolist() == [0, 1, 2]
    source = str(run_dir / "checkpoints" / "last.pt")
    train_on_ranks(project, tmp_path / "one", "--max-steps", "3", "--resume", source, processes=1)
    train_on_ranks(project, run_dir, "--max-steps", "2", "--resume")  # nothing is left to train: all is as it was
    train_on_ranks(project, run_dir, "--max-steps", "3", "--resume")


def test_what_ranks_differ_in_is_kept_for_each_and_averaged_to_evaluate(own_project: Render, tmp_path: Path) -> None:
    """A checkpoint of version 1 is resumed as exactly."""
    project, runs = with_model(own_project, OWN), [tmp_path / name for name in ("whole", "run", "version-1")]
    train_on_ranks(project, runs[0], "--max-steps", "4", "--save-every", "2", "--keep", "9")
    train_on_ranks(project, runs[1], "--max-steps", "2")
    saved = checkpoint(runs[1])
    own = saved["ranks"]["buffers"]
    assert own.keys() == {"tracker.running_level", "tracker.queue", "tracker.place", "tracker.spectrum"}
    assert [int(place) for place in own["tracker.place"]] == [2, 4]
    for name in ("tracker.running_level", "tracker.queue", "tracker.spectrum"):
        first, second = own[name]
        assert not torch.equal(first, second)
        torch.testing.assert_close(saved["model"][name], (first + second) / 2)
    write_as_version_1(shutil.copytree(runs[1], runs[2]), saved)
    for run_dir in runs[1:]:
        train_on_ranks(project, run_dir, "--max-steps", "4", "--resume")
        assert_same_state(checkpoint(runs[0]), checkpoint(run_dir), "model", "optimizer", "ranks")


def test_a_buffer_that_becomes_nan_is_no_good_checkpoint(own_project: Render, tmp_path: Path) -> None:
    nan = OWN.replace("self.place += 1", "self.scale[dist.get_rank()] = torch.nan\n            self.place += 1")
    project = with_model(own_project, nan)
    printed = "".join(train_on_ranks(project, tmp_path / "run", "--max-steps", "2", code=65))
    said = "error: weights are not finite after step 2: there is no checkpoint yet.*not finite: tracker.scale"
    assert re.search(said, printed)
    assert not [*tmp_path.glob("run/checkpoints/*.pt")]


def write_as_version_1(run_dir: Path, saved: dict[str, Any]) -> None:
    """Write a checkpoint as version 1 did: optimizer by position, all buffers stacked."""
    optimizer = saved["optimizer"]
    places = {name: place for place, name in enumerate(optimizer["param_groups"][0]["params"])}
    optimizer["state"] = {places[name]: state for name, state in optimizer["state"].items()}
    optimizer["param_groups"][0]["params"] = [*places.values()]
    del optimizer["class"], optimizer["built"]
    own = saved["ranks"]["buffers"]
    own |= {"tracker.scale": 2 * [saved["model"]["tracker.scale"]], "tracker.not_saved": 2 * [torch.zeros(5)]}
    saved["ranks"]["buffers"] = {name: torch.stack([*rows]) for name, rows in own.items()}
    for file in (run_dir / "checkpoints").iterdir():
        file.unlink()
    torch.save(saved, run_dir / "checkpoints" / "last.pt")


def test_a_usual_network_needs_no_exchange(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    collectives = package("runtime.collectives")
    monkeypatch.setattr(collectives, "gather", lambda value: pytest.fail("an exchange"))
    assert collectives.unequal_buffers(package("model").build_model(None)) == {}
    assert collectives.unequal_buffers(torch.nn.BatchNorm1d(3, track_running_stats=False)) == {}
