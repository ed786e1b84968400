"""The whole program on two processes: it learns, rank 0 alone writes, and a resumed run ends where a whole one does."""

import json
from pathlib import Path
from typing import Any

import torch
from conftest import Train


def checkpoint(run_dir: Path, name: str = "last.pt") -> dict[str, Any]:
    """Read a checkpoint the way the program does."""
    read: dict[str, Any] = torch.load(run_dir / "checkpoints" / name, map_location="cpu", weights_only=True)
    return read


def test_it_learns_and_rank_0_alone_writes(train: Train, tmp_path: Path) -> None:
    train("--epochs", "4", "--keep", "2", "--run-dir", str(tmp_path / "run"))
    saved = checkpoint(tmp_path / "run", "best.pt")
    assert saved["progress"]["best_accuracy"] > 0.8
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved["model"])
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["best.pt", "last.pt", "step-00000066.pt", "step-00000088.pt"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["epochs"] == 4
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("step 88 ") == 2, "rank 0 logs the last steps and the last epoch, and no other rank does"


def test_a_resumed_run_ends_with_the_same_weights(train: Train, tmp_path: Path) -> None:
    train("--max-steps", "30", "--run-dir", str(tmp_path / "whole"))
    train("--max-steps", "13", "--run-dir", str(tmp_path / "stopped"))
    train("--max-steps", "30", "--run-dir", str(tmp_path / "stopped"), "--resume")
    whole, resumed = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "stopped")
    for key, weights in whole["model"].items():
        assert torch.equal(weights, resumed["model"][key]), key
    torch.testing.assert_close(resumed["optimizer"], whole["optimizer"], rtol=0, atol=0)
    assert resumed["progress"]["samples_seen"] == whole["progress"]["samples_seen"] == 22 * 64 + 8 * 64
