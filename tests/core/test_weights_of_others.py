"""--resume takes a folder, and --init-from the files of other programs; what does not fit is named with the reason."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import Package, Render
from tests.support.ranks import assert_same_state, train_on_ranks
from tests.support.training import checkpoint, differences


@pytest.fixture(scope="module")
def trained(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a short run with two checkpoints."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "4", "--save-every", "2", processes=1)
    return run_dir


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_a_folder_is_resumed_from_its_newest_whole_file(
    below: str, project: Render, trained: Path, tmp_path: Path
) -> None:
    newest = trained / "checkpoints" / "step-00000004.pt"
    folder, run_dir = trained / below, tmp_path / "run"
    options = ("--resume", str(folder), "--max-steps", "6")
    train_on_ranks(project(), run_dir, *options, processes=1)
    train_on_ranks(project(), tmp_path / "other", "--resume", str(newest), "--max-steps", "6", processes=1)
    assert_same_state(checkpoint(run_dir), checkpoint(tmp_path / "other"))
    # The run directory in use is resumed as --resume does: a damaged file gives way to the one before.
    last = run_dir / "checkpoints" / "last.pt"
    last.unlink()
    last.write_bytes(b"no checkpoint")
    again = ("--resume", str(run_dir / below), "--max-steps", "7")
    printed = train_on_ranks(project(), run_dir, *again, processes=1)
    assert f"{last} is damaged" in printed[0]
    assert f"resumed from {run_dir / 'checkpoints' / 'step-00000006.pt'}" in printed[0]


def test_a_folder_without_checkpoints_is_named(project: Render, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    options = ("--resume", str(tmp_path / "empty"))
    printed = train_on_ranks(project(), tmp_path / "run", *options, processes=1, code=2)
    assert f"error: there is no checkpoint {tmp_path / 'empty'}: leave out --resume" in printed[0]


SAVED: dict[str, Callable[[Any, Path], object]] = {
    "weights.pth": lambda weights, file: torch.save(weights, file),
    "old.pth": lambda weights, file: torch.save(weights, file, _use_new_zipfile_serialization=False),
    "foreign.ckpt": lambda weights, file: torch.save({"epoch": 3, "state_dict": weights}, file),
}


@pytest.mark.parametrize("name", SAVED)
def test_files_of_other_programs_are_loaded(
    name: str, package: Package, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights, model, path = checkpoint(trained)["model"], package("model").build_model(), tmp_path / name
    SAVED[name](weights, path)
    with caplog.at_level("INFO"):
        package("runtime.weights").load_what_fits(model, path)
    assert differences(dict(model.state_dict()), dict(weights)) == []
    assert [record.getMessage() for record in caplog.records] == [f"began with 14 of 14 tensors of {path}"]


def test_the_folders_of_a_run_and_of_an_export_are_weights(project: Render, package: Package, trained: Path) -> None:
    of_folder = package("runtime.checkpoint").weights_file
    assert of_folder(trained) == trained / "checkpoints" / "best.pt"
    folder = package("runtime.export").export(trained)
    assert of_folder(folder) == folder / "model.safetensors"
    options = ("--init-from", str(folder), "--max-steps", "1", "--lr", "0")
    train_on_ranks(project(), trained.with_name("begun"), *options, processes=1)
    best, begun = (checkpoint(run, "best.pt")["model"] for run in (trained, trained.with_name("begun")))
    assert torch.equal(best["classifier.2.weight"], begun["classifier.2.weight"])


@pytest.mark.parametrize(
    ("rename", "hint"),
    [
        (lambda name: f"module.{name}", 'names in it begin with "module.", which the model lacks'),
        (lambda name: f"_orig_mod.{name}", 'names in it begin with "_orig_mod.", which the model lacks'),
        (lambda name: name.removeprefix("body."), 'names of the model begin with "body.", which it lacks'),
    ],
)
def test_a_prefix_is_named(rename: Callable[[str], str], hint: str, package: Package, tmp_path: Path) -> None:
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    torch.save({rename(name): value for name, value in model.state_dict().items()}, tmp_path / "weights.pt")
    with pytest.raises(package("runtime.exits").UserError) as raised:
        package("runtime.weights").load_what_fits(model, tmp_path / "weights.pt")
    assert (
        f"the model has body.0.bias, body.0.weight, body.1.bias, body.1.weight, and it has {rename('body.0.bias')}"
        in str(raised.value)
    )
    assert hint in str(raised.value)


def test_a_prefix_that_some_have_is_logged(package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    weights = model.state_dict()
    weights["base.body.weight"], weights["base.body.bias"] = weights.pop("body.weight"), weights.pop("body.bias")
    torch.save(weights, tmp_path / "weights.pt")
    with caplog.at_level("INFO"):
        package("runtime.weights").load_what_fits(model, tmp_path / "weights.pt")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].endswith('; names in it begin with "base.", which the model lacks')
    assert lines[1] == "2 tensors are not in it, and stay as build_model() made them: body.bias, body.weight"


def test_what_cannot_be_read_is_told_in_one_plain_line(package: Package, tmp_path: Path) -> None:
    torch.save({"model": {}, "args": argparse.Namespace(lr=1)}, tmp_path / "foreign.pt")
    with pytest.raises(package("runtime.exits").UserError) as raised:
        package("runtime.weights").load_what_fits(nn.Linear(1, 1), tmp_path / "foreign.pt")
    said = str(raised.value)
    assert "foreign.pt cannot be read as a checkpoint: it holds argparse.Namespace, and only tensors" in said
    assert said.isprintable()
