"""A compiled run saves what a run that is not compiled can go on from."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.forked_runs import relative_difference
from tests.support.projects.instructions import ALTERNATING, follow_recipe
from tests.support.ranks import train_on_ranks
from tests.support.reference import Average
from tests.support.training import EXACTLY, checkpoint, train

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@pytest.mark.gpu
@NEEDS_COMPILER
def test_a_compiled_run_has_the_same_keys_and_goes_on_uncompiled(project: Render, tmp_path: Path) -> None:
    plain, run_dir = tmp_path / "plain", tmp_path / "run"
    train_on_ranks(project(), plain, *EXACTLY, "--max-steps", "13")
    source = str(plain / "checkpoints" / "last.pt")
    averaging = ("--ema-decay", "0.5", "--save-every", "1")
    options = (*EXACTLY, "--resume", source, "--max-steps", "15", "--compile", *averaging)
    train(project(), run_dir, *options, launcher="alone")
    saved = checkpoint(run_dir)
    assert saved["config"]["compile"] is True
    assert saved["model"].keys() == checkpoint(plain)["model"].keys()
    average = Average({name: checkpoint(plain)["model"][name] for name in saved["update"]["average"]}, decay=0.5)
    for step in (14, 15):
        average.follow(checkpoint(run_dir, f"step-{step:08d}.pt")["model"])
    assert relative_difference(saved["update"]["average"], average.weights) <= 1e-5
    train_on_ranks(project(), run_dir, "--resume", "--max-steps", "17", processes=1)
    assert checkpoint(run_dir)["progress"]["step"] == 17


@NEEDS_COMPILER
def test_a_loss_that_depends_on_the_step_is_not_compiled_in_each_step(project: Render, tmp_path: Path) -> None:
    changed = follow_recipe(ALTERNATING, project(), tmp_path / "project")
    options = ("--max-steps", "12", "--compile")
    said = train(changed, tmp_path / "run", *options, launcher="alone", env={"TORCH_LOGS": "recompiles"})
    assert 1 <= said.count("Recompiling function") <= 4, "once for each of the two losses, or nearly so"
