"""A checkpoint holds each buffer once, and for each rank only what ranks differ in; nothing constant is averaged."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import Package, Render
from tests.support.ranks import train_on_ranks
from tests.support.training import checkpoint, differences

LOWEST = torch.finfo(torch.float32).min
HEAD = '''"""A network with buffers."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def build_model() -> nn.Module:
    """Return it."""
    return Network()


'''
MASKED = HEAD + '''class Network(nn.Module):
    """Layers with masks, frozen weights that are none, and 10 MB of weights."""

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
'''
GROWING = HEAD + '''class Network(nn.Module):
    """Tables that are as long as they must be, which is longer on rank 1, and another that is not saved."""

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
'''
OWN = HEAD + '''class Tracker(nn.Module):
    """A layer of the owner's, which follows its input."""

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
    """Such a layer before a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.tracker(images.flatten(1)))
'''


def with_model(own_project: Render, model: str) -> Path:
    place = own_project()
    (place / "ddp_project" / "model.py").write_text(model)
    return place


def test_masks_are_in_a_checkpoint_once_and_as_they_are(own_project: Render, tmp_path: Path) -> None:
    project = with_model(own_project, MASKED)
    sizes = []
    for ranks in (1, 2):
        run_dir = tmp_path / f"run-{ranks}"
        train_on_ranks(project, run_dir, "--max-steps", "2", processes=ranks)
        sizes.append((run_dir / "checkpoints" / "last.pt").stat().st_size)
        saved = checkpoint(run_dir)
        assert saved["ranks"]["buffers"] == {}
        assert "kept_out" not in saved["model"]
        lowest, infinite = saved["model"]["lowest"], saved["model"]["infinite"]
        assert torch.equal(lowest, torch.full((512, 512), LOWEST).triu(1))
        assert torch.equal(infinite == -torch.inf, lowest == LOWEST)
    assert sizes[1] <= 1.05 * sizes[0]
    train_on_ranks(project, tmp_path / "run-2", "--max-steps", "3", "--resume")


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
    text = (project / "ddp_project" / "model.py").read_text()
    (project / "ddp_project" / "model.py").write_text(
        text.replace('"table", torch.zeros(1)', '"table", torch.zeros(7)')
    )
    printed = train_on_ranks(project, run_dir, "--max-steps", "4", "--resume", code=2)
    assert "does not fit this program" in printed[0]
    assert "size mismatch for table" in printed[0]


def assert_resumes_exactly(project: Path, folder: Path, stopped: Callable[[Path], object]) -> None:
    """Stop a run, look at its directory or change it, resume, and compare its end with that of a whole run."""
    options = ("--save-every", "2", "--keep", "9")
    train_on_ranks(project, folder / "whole", "--max-steps", "4", *options)
    train_on_ranks(project, folder / "run", "--max-steps", "2", *options)
    stopped(folder / "run")
    train_on_ranks(project, folder / "run", "--max-steps", "4", "--resume", *options)
    for part in ("model", "optimizer", "ranks"):
        assert differences(checkpoint(folder / "whole")[part], checkpoint(folder / "run")[part]) == [], part


def test_what_ranks_differ_in_is_kept_for_each_and_averaged_to_evaluate(own_project: Render, tmp_path: Path) -> None:
    assert_resumes_exactly(with_model(own_project, OWN), tmp_path, assert_each_rank_has_its_own)


def assert_each_rank_has_its_own(run_dir: Path) -> None:
    saved = checkpoint(run_dir)
    own = saved["ranks"]["buffers"]
    assert own.keys() == {"tracker.running_level", "tracker.queue", "tracker.place", "tracker.spectrum"}
    assert [int(place) for place in own["tracker.place"]] == [2, 4]
    for name in ("tracker.running_level", "tracker.queue", "tracker.spectrum"):
        first, second = own[name]
        assert not torch.equal(first, second)
        torch.testing.assert_close(saved["model"][name], (first + second) / 2)


def test_a_buffer_that_becomes_nan_is_no_good_checkpoint(own_project: Render, tmp_path: Path) -> None:
    nan = OWN.replace("self.place += 1", "self.scale[dist.get_rank()] = torch.nan\n            self.place += 1")
    project = with_model(own_project, nan)
    printed = "".join(train_on_ranks(project, tmp_path / "run", "--max-steps", "2", code=65))
    assert "error: weights are not finite after step 2: there is no checkpoint yet" in printed
    assert "not finite: tracker.scale" in printed
    assert not [*tmp_path.glob("run/checkpoints/*.pt")]


def as_version_1_had_it(run_dir: Path) -> None:
    """Write the last checkpoint of a run as version 1 did: optimizer by position, all buffers stacked."""
    saved = checkpoint(run_dir)
    optimizer = saved["optimizer"]
    places = {name: place for place, name in enumerate(optimizer["param_groups"][0]["params"])}
    optimizer["state"] = {places[name]: state for name, state in optimizer["state"].items()}
    optimizer["param_groups"][0]["params"] = [*places.values()]
    del optimizer["class"], optimizer["built"]
    own = saved["ranks"]["buffers"]
    for name in ("tracker.scale", "tracker.not_saved"):
        own[name] = torch.stack(2 * [saved["model"].get(name, torch.zeros(5))])
    saved["ranks"]["buffers"] = {
        name: rows if isinstance(rows, Tensor) else torch.stack(rows) for name, rows in own.items()
    }
    for file in (run_dir / "checkpoints").iterdir():
        file.unlink()
    torch.save(saved, run_dir / "checkpoints" / "last.pt")


def test_a_checkpoint_of_version_1_goes_on_exactly(own_project: Render, tmp_path: Path) -> None:
    assert_resumes_exactly(with_model(own_project, OWN), tmp_path, as_version_1_had_it)


def test_a_usual_network_needs_no_exchange(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    collectives = package("runtime.collectives")
    monkeypatch.setattr(collectives, "gather", lambda value: pytest.fail("an exchange"))
    assert collectives.unequal_buffers(package("model").build_model()) == {}
    assert collectives.unequal_buffers(torch.nn.BatchNorm1d(3, track_running_stats=False)) == {}
