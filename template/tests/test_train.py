"""The whole program on two processes: it learns, and rank 0 alone writes."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import Train


def test_it_learns_and_rank_0_alone_writes(train: Train, tmp_path: Path) -> None:
    options = ("--max-steps", "40", "--log-every", "10", "--save-every", "10", "--keep", "2")
    train(*options, "--run-dir", str(tmp_path / "run"))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    log = (tmp_path / "run" / "train.log").read_text()
    losses = [float(loss) for loss in re.findall(r" train/loss (\S+)", log)]
    assert losses[-1] < losses[0]
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved["model"])
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoints").glob("*.pt"))
    last = saved["progress"]["step"]
    assert names[:2] == ["best.pt", "last.pt"]
    assert names[3:] == [f"step-{last:08d}.pt"], "--keep 2"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["max_steps"] == 40
    assert log.count(f"step {last} ") == 2, "rank 0 logs the last steps and the last epoch, and no other rank does"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_it_learns_and_goes_on_with_one_gpu_for_both(train: Train, tmp_path: Path) -> None:
    options = ("--device", "cuda", "--log-every", "10", "--run-dir", str(tmp_path / "run"))
    train(*options, "--max-steps", "20")
    train(*options, "--max-steps", "40", "--resume")
    losses = re.findall(r" train/loss (\S+)", (tmp_path / "run" / "train.log").read_text())
    assert float(losses[-1]) < float(losses[0])
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["progress"]["step"] == 40
