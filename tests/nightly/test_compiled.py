"""A compiled run saves what a run that is not compiled can go on from."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.launching import checkpoint, train
from tests.ranks import train_on_ranks


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_has_the_same_keys_and_goes_on_uncompiled(project: Render, tmp_path: Path) -> None:
    plain, run_dir = tmp_path / "plain", tmp_path / "run"
    train_on_ranks(project(), plain, "--max-steps", "13")
    source = str(plain / "checkpoints" / "last.pt")
    train(project(), run_dir, "--resume", source, "--max-steps", "15", "--compile", launcher="alone")
    saved = checkpoint(run_dir)
    assert saved["config"]["compile"] is True
    assert saved["model"].keys() == checkpoint(plain)["model"].keys()
    train_on_ranks(project(), run_dir, "--resume", "--max-steps", "17", processes=1)
    assert checkpoint(run_dir)["progress"]["step"] == 17
