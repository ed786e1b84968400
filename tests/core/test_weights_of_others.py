"""--init-from begins with weights of runs and other programs, --resume takes a folder; what does not fit is named."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.conftest import Package, Render
from tests.support.ranks import assert_same_state, lone_error_in, train_on_ranks
from tests.support.training import assert_same_weights, checkpoint, differences

Logged = Callable[[], list[str]]


@pytest.fixture(scope="module")
def trained(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a short run with two checkpoints."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "4", "--save-every", "2", processes=1)
    return run_dir


@pytest.fixture
def weights(package: Package) -> Any:
    return package("runtime.weights")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    caplog.set_level("INFO")
    return lambda: [record.getMessage() for record in caplog.records]


def parameters(run_dir: Path, name: str = "last.pt") -> dict[str, Tensor]:
    """The weights of a checkpoint, without BatchNorm's statistics."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {key: value for key, value in checkpoint(run_dir, name)["model"].items() if not key.endswith(statistics)}


def test_a_folder_is_resumed_from_its_newest_file(project: Render, trained: Path, tmp_path: Path) -> None:
    newest = trained / "checkpoints" / "step-00000004.pt"
    for name, source in (("run", trained), ("below", trained / "checkpoints"), ("file", newest)):
        options = ("--resume", str(source), "--max-steps", "6")
        train_on_ranks(project(), tmp_path / name, *options, processes=1)
        assert_same_state(checkpoint(tmp_path / name), checkpoint(tmp_path / "run"))
    options = ("--resume", str(tmp_path))
    printed = train_on_ranks(project(), tmp_path / "none", *options, processes=1, code=2)
    assert f"error: there is no checkpoint {tmp_path}: leave out --resume" in printed[0]


def test_a_run_begins_with_weights_of_a_run_or_an_export(
    project: Render, trained: Path, package: Package, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    folder = package("runtime.export").export(trained, tmp_path / "export")
    for source, run_dir in ((trained, first), (folder, second)):
        options = ("--max-steps", "2", "--lr", "0", "--seed", "5", "--init-from", str(source))
        train_on_ranks(project(), run_dir, *options)
    assert differences(parameters(first), parameters(trained, "best.pt")) == []
    before, began = (checkpoint(*each)["model"] for each in ((trained, "best.pt"), (first,)))
    counted = "features.0.1.num_batches_tracked"
    assert began[counted] == before[counted] + 2
    assert_same_state(checkpoint(first), checkpoint(second))
    log = (second / "train.log").read_text()
    assert f"began with 14 of 14 tensors of {folder / 'model.safetensors'}" in log
    assert json.loads((second / "config.json").read_text())["init_from"] == str(folder)

    (folder / "model.safetensors").unlink()
    again = ("--max-steps", "3", "--seed", "5", "--resume")
    train_on_ranks(project(), second, *again)
    train_on_ranks(project(), first, *again, "--init-from", str(folder))
    assert_same_weights(checkpoint(first), checkpoint(second))
    for run_dir in (first, second):
        (line,) = [each for each in (run_dir / "train.log").read_text().splitlines() if "other options" in each]
        assert "--max-steps 3 (was 2)" in line
        assert "init-from" not in line


SAVED: dict[str, Callable[[Any, Path], object]] = {
    "weights.pth": lambda weights, file: torch.save(weights, file),
    "old.pth": lambda weights, file: torch.save(weights, file, _use_new_zipfile_serialization=False),
    "foreign.ckpt": lambda weights, file: torch.save({"epoch": 3, "state_dict": weights}, file),
}


@pytest.mark.parametrize("name", SAVED)
def test_files_of_other_programs_are_loaded(
    name: str, weights: Any, package: Package, trained: Path, tmp_path: Path, logged: Logged
) -> None:
    tensors, model, path = checkpoint(trained)["model"], package("model").build_model(), tmp_path / name
    SAVED[name](tensors, path)
    weights.load_what_fits(model, path)
    assert differences(dict(model.state_dict()), dict(tensors)) == []
    assert logged() == [f"began with 14 of 14 tensors of {path}"]


def test_what_does_not_fit_is_named_and_the_rest_is_loaded(
    weights: Any, package: Package, trained: Path, tmp_path: Path, logged: Logged
) -> None:
    """Some weights have another name, some another shape, and many are no part of the model."""
    source, model = checkpoint(trained)["model"], package("model").build_model()
    fresh = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("classifier")}
    others = source | {"classifier.2.weight": torch.zeros(3, 256), "head.bias": source["classifier.2.bias"]}
    others |= {f"layer{number}": torch.zeros(1) for number in range(50)}
    del others["classifier.2.bias"]
    save_file(others, tmp_path / "others.safetensors")
    weights.load_what_fits(model, tmp_path / "others.safetensors")
    assert differences(dict(model.state_dict()), source | fresh) == []
    began, missing, misshapen, foreign = logged()
    stay = "stay as build_model() made them"
    assert began.startswith("began with 12 of 64 tensors")
    assert missing == f"1 tensors are not in it, and {stay}: classifier.2.bias"
    assert misshapen == f"1 tensors have another shape or are of_data, and {stay}: classifier.2.weight"
    listed = "51 tensors are not in the model, and were left out: head.bias, layer0, layer1, layer10, "
    assert (foreign.startswith(listed), foreign.endswith(", ... (51 in all)")) == (True, True)


def test_a_name_of_tied_weights_is_enough(weights: Any, tmp_path: Path, logged: Logged) -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    model["head"].weight = model["embedding"].weight
    save_file({"embedding.weight": torch.ones(5, 3)}, tmp_path / "model.safetensors")
    weights.load_what_fits(model, tmp_path / "model.safetensors")
    assert model.state_dict()["head.weight"].sum() == 15
    assert logged()[1:] == ["1 tensors are not in it, and stay as build_model() made them: head.bias"]


def test_what_describes_the_data_stays_that_of_the_run(weights: Any, package: Package, tmp_path: Path) -> None:
    """Names of classes are as long as others now and then, and a table has as many columns as another one."""
    for task in ("images", "tabular"):
        network = package("model", task=task).Network
        assert {*network.of_data} == {name for name, kind in network.__annotations__.items() if kind is Tensor}
    linear = nn.Linear(2, 1)
    linear.register_buffer("names", torch.zeros(3))
    vars(linear)["of_data"] = ("names",)
    save_file({"weight": torch.ones(1, 2), "names": torch.ones(3)}, tmp_path / "model.safetensors")
    weights.load_what_fits(linear, tmp_path / "model.safetensors")
    assert linear.weight.tolist() == [[1, 1]]
    assert linear.get_buffer("names").tolist() == [0, 0, 0]


TWO_LAYERS = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
NAMES = [*TWO_LAYERS.state_dict()]
UNUSABLE: dict[str, tuple[object, str]] = {
    "foreign": ({"weights": 3}, "and it has weights"),
    "unreadable.safetensors": (b"", "cannot be read as safetensors"),
    "other.safetensors": ({"other.weight": torch.zeros(3)}, "body.1.weight, and it has other.weight"),
    "of a wrapper": (
        {f"module.{name}": torch.zeros(2) for name in NAMES},
        'names in it begin with "module.", which the model lacks',
    ),
    "of a part": (
        {name.removeprefix("body."): torch.zeros(2) for name in NAMES},
        'names of the model begin with "body.", which it lacks',
    ),
    "more than tensors": (
        {"model": {}, "args": argparse.Namespace(lr=1)},
        "cannot be read as a checkpoint: it holds argparse.Namespace, and only tensors",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_weights_that_cannot_be_used_are_named(name: str, weights: Any, package: Package, tmp_path: Path) -> None:
    content, words = UNUSABLE[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (save_file if name.endswith(".safetensors") else torch.save)(content, tmp_path / name)  # type: ignore[operator]
    with pytest.raises(package("runtime.exits").UserError) as raised:
        weights.load_what_fits(TWO_LAYERS, tmp_path / name)
    assert words in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(("there", "words"), [(False, "there is no file"), (True, "best.pt is damaged: ")])
def test_unusable_weights_end_all_ranks_in_one_line(
    there: bool, words: str, project: Render, trained: Path, tmp_path: Path
) -> None:
    best = shutil.copytree(trained, tmp_path / "trained") / "checkpoints" / "best.pt"
    best.unlink()
    if there:
        best.write_bytes(b"no checkpoint")
    options = ("--init-from", str(best))
    assert words in lone_error_in(train_on_ranks(project(), tmp_path / "new", *options, code=2))
    assert not [*(tmp_path / "new").glob("checkpoints/*")]
