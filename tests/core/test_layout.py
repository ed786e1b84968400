"""--channels-last changes where the numbers lie in memory, and no number, also if it changes at a resume."""

from pathlib import Path

import torch

from tests.conftest import Render
from tests.support.ranks import train_on_ranks
from tests.support.training import checkpoint


def test_channels_last_changes_the_layout_alone(project: Render, tmp_path: Path) -> None:
    assert_the_layout_may_change(project(), tmp_path)


def assert_the_layout_may_change(project: Path, tmp_path: Path, *options: str) -> None:
    """Change it at a resume; a fused optimizer pairs weights and moments by their place in memory."""
    train_on_ranks(project, tmp_path / "first", *options, "--max-steps", "13")
    source = str(tmp_path / "first" / "checkpoints" / "last.pt")
    for option in ("--channels-last", "--no-channels-last"):
        train_on_ranks(project, tmp_path / option, *options, "--resume", source, "--max-steps", "14", option)
    changed, same = (checkpoint(tmp_path / option)["model"] for option in ("--channels-last", "--no-channels-last"))
    for name, weight in same.items():
        torch.testing.assert_close(changed[name], weight, rtol=1e-4, atol=1e-5)
        if weight.ndim == 4 and weight.shape[1] > 1:
            layouts = [each[name].is_contiguous(memory_format=torch.channels_last) for each in (changed, same)]
            assert layouts == [True, False]
