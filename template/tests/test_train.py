"""The whole program on two processes: it learns, and rank 0 alone writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Train


def records(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """The records of metrics.jsonl that have a metric."""
    return [record for line in (run_dir / "metrics.jsonl").open() if name in (record := json.loads(line))]


def test_it_learns_and_rank_0_alone_writes(train: Train, tmp_path: Path) -> None:
    options = ("--steps", "800", "--max-steps", "40", "--log-every", "10", "--save-every", "10", "--keep", "2")
    train(*options, "--run-dir", str(tmp_path / "run"))
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    trained = records(tmp_path / "run", "train/loss")
    assert trained[-1]["train/loss"] < trained[0]["train/loss"]
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved["model"])
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoints").glob("*.pt"))
    last = saved["progress"]["step"]
    assert names[:2] == ["best.pt", "last.pt"]
    assert names[3:] == [f"step-{last:08d}.pt"], "--keep 2"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["max_steps"] == 40
    steps = [record["step"] for record in trained]
    assert steps == sorted({*steps}), "rank 0 records each step once, and no other rank does"
    assert steps[-1] == records(tmp_path / "run", "epoch")[-1]["step"] == last


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_it_learns_and_goes_on_with_one_gpu_for_both(train: Train, tmp_path: Path) -> None:
    options = ("--device", "cuda", "--log-every", "10", "--run-dir", str(tmp_path / "run"))
    train(*options, "--max-steps", "20")
    train(*options, "--max-steps", "40", "--resume")
    trained = records(tmp_path / "run", "train/loss")
    assert trained[-1]["train/loss"] < trained[0]["train/loss"]
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["progress"]["step"] == 40
