"""The whole program on two processes: it learns, and rank 0 alone writes. The numbers are those of the digits."""

import json
from pathlib import Path

import torch
from conftest import Train


def test_it_learns_and_rank_0_alone_writes(train: Train, tmp_path: Path) -> None:
    train("--epochs", "4", "--keep", "2", "--run-dir", str(tmp_path / "run"))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)
    assert saved["progress"]["best_accuracy"] > 0.8
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved["model"])
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoints").glob("*.pt"))
    assert names == ["best.pt", "last.pt", "step-00000066.pt", "step-00000088.pt"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["epochs"] == 4
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("step 88 ") == 2, "rank 0 logs the last steps and the last epoch, and no other rank does"
