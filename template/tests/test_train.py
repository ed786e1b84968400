"""The whole program on two processes: it learns, and rank 0 alone writes."""

import json
import re
from pathlib import Path

import torch
from conftest import Train


def test_it_learns_and_rank_0_alone_writes(train: Train, tmp_path: Path) -> None:
    train("--epochs", "4", "--keep", "2", "--run-dir", str(tmp_path / "run"))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    log = (tmp_path / "run" / "train.log").read_text()
    losses = [float(loss) for loss in re.findall(r" epoch/train_loss (\S+)", log)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved["model"])
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoints").glob("*.pt"))
    last = saved["progress"]["step"]
    assert names == ["best.pt", "last.pt", f"step-{last * 3 // 4:08d}.pt", f"step-{last:08d}.pt"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["epochs"] == 4
    assert log.count(f"step {last} ") == 2, "rank 0 logs the last steps and the last epoch, and no other rank does"
