"""--channels-last changes where the numbers lie in memory, and no number, also if it changes at a resume."""

from pathlib import Path

import pytest
import torch

from tests.conftest import Render
from tests.support.ranks import train_on_ranks
from tests.support.training import checkpoint


@pytest.mark.parametrize("amp", ["none", "torch"])
def test_channels_last_changes_the_layout_alone(amp: str, project: Render, tmp_path: Path) -> None:
    folder = project() if amp == "none" else project(amp=amp)
    runs = {option: tmp_path / option for option in ("--channels-last", "--no-channels-last")}
    for option, run_dir in runs.items():
        train_on_ranks(folder, run_dir, "--max-steps", "3", option)
    last, first = (checkpoint(run_dir)["model"] for run_dir in runs.values())
    assert last["features.1.0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert not first["features.1.0.weight"].is_contiguous(memory_format=torch.channels_last)
    # Adam makes much of small differences of gradients; the statistics of BatchNorm do not.
    statistics = [name for name in first if name.endswith(("running_mean", "running_var"))]
    for name in statistics:
        torch.testing.assert_close(last[name], first[name], rtol=1e-3 if amp == "none" else 2e-2, atol=1e-4)
    assert len(statistics) == 4


def test_the_layout_may_change_at_a_resume(project: Render, tmp_path: Path) -> None:
    assert_the_layout_may_change(project(), tmp_path)


def assert_the_layout_may_change(project: Path, tmp_path: Path, *options: str) -> None:
    """Change it at a resume; a fused optimizer pairs weights and moments by their place in memory."""
    train_on_ranks(project, tmp_path / "first", *options, "--max-steps", "13")
    source = str(tmp_path / "first" / "checkpoints" / "last.pt")
    for option in ("--channels-last", "--no-channels-last"):
        train_on_ranks(project, tmp_path / option, *options, "--resume", source, "--max-steps", "14", option)
    changed, same = (checkpoint(tmp_path / option) for option in ("--channels-last", "--no-channels-last"))
    for name, weight in same["model"].items():
        torch.testing.assert_close(changed["model"][name], weight, rtol=1e-4, atol=1e-5)
