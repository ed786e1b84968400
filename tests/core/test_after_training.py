"""export.py and predict.py use the weights of a checkpoint, --init-from those of any file, --resume a folder."""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from tests.conftest import Logged, Package, Render, of_package
from tests.support.processes import output_of
from tests.support.ranks import assert_same_state, lone_error_in, output_of_fork, train_on_ranks
from tests.support.training import assert_same_weights, checkpoint, differences

Refused = Callable[..., str]
export, weights = of_package("runtime.export"), of_package("runtime.weights")
SAVED: dict[str, Callable[[Any, Path], object]] = {
    "weights.pth": lambda weights, file: torch.save(weights, file),
    "old.pth": lambda weights, file: torch.save(weights, file, _use_new_zipfile_serialization=False),
    "foreign.ckpt": lambda weights, file: torch.save({"epoch": 3, "state_dict": weights}, file),
}
TWO_LAYERS = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
NAMES, ZEROS = [*TWO_LAYERS.state_dict()], torch.zeros(2)
WRAPPED, PART = [f"module.{name}" for name in NAMES], [name.removeprefix("body.") for name in NAMES]
MORE = {"model": {}, "args": argparse.Namespace(lr=1)}
UNUSABLE: dict[str, tuple[Any, str]] = {
    "foreign": ({"weights": 3}, "and it has weights"),
    "unreadable.safetensors": (b"", "cannot be read as safetensors"),
    "other.safetensors": ({"other.weight": torch.zeros(3)}, "body.1.weight, and it has other.weight"),
    "of a wrapper": (dict.fromkeys(WRAPPED, ZEROS), 'names in it begin with "module.", which the model lacks'),
    "of a part": (dict.fromkeys(PART, ZEROS), 'names of the model begin with "body.", which it lacks'),
    "more than tensors": (MORE, "cannot be read as a checkpoint: it holds argparse.Namespace, and only tensors"),
}


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    file.write_bytes(content)


@pytest.fixture(scope="module")
def trained(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of two ranks, whose BatchNorm has seen different images, with a checkpoint of each step."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "3", "--save-every", "1", "--keep", "3")
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def refused(package: Package, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Calls what must end with code 2 and one line, and returns that line."""

    def get(work: Callable[..., Any], *arguments: Any) -> str:
        capsys.readouterr()
        assert package("runtime.exits").finish(lambda: work(*arguments)) == 2
        out, error = capsys.readouterr()
        assert (out, error[:7], error.count("\n")) == ("", "error: ", 1)
        return error

    return get


def test_an_export_is_the_best_checkpoint(project: Render, run_dir: Path, package: Package, tmp_path: Path) -> None:
    folder = run_dir / "export"
    assert output_of([sys.executable, "export.py", run_dir], project(), os.environ, timeout=60) == f"{folder}\n"
    best, build_model = checkpoint(run_dir, "best.pt"), package("model").build_model
    expected, found = build_model(None).eval(), build_model(None).eval()
    expected.load_state_dict(best["model"])
    found.load_state_dict(load_file(folder / "model.safetensors"))
    with np.load(project() / "ddp_project" / "digits.npz") as digits:
        images = torch.from_numpy(digits["images"]).float()[:, None] / 16
    with torch.inference_mode():
        logits = expected(images)
        assert torch.equal(found(images), logits)
    assert differences(found.state_dict(), best["model"]) == []
    own = {name: rows[0] for name, rows in best["ranks"]["buffers"].items() if name.endswith("running_mean")}
    assert not any(torch.equal(mean, best["model"][name]) for name, mean in own.items()), "they are averaged"

    about = json.loads((folder / "model.json").read_text())
    assert (about["options"], about["code"]) == (best["config"], best["code"])
    assert (about["step"], about["epoch"], about["weights"]) == (3, 0, "last")
    assert about["best"] == best["progress"]["best_metrics"]
    assert about["checkpoint_sha256"] == digest(run_dir / "checkpoints" / "best.pt")
    assert about["sha256"] == digest(folder / "model.safetensors")

    command: list[str | Path] = [sys.executable, "predict.py", folder, "ddp_project/digits.npz"]
    output_of([*command, "--to", tmp_path / "answers"], project(), os.environ, timeout=60)
    answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [answer["digit"] for answer in answers] == logits.argmax(dim=1).tolist()
    probabilities = torch.tensor([answer["probability"] for answer in answers])
    torch.testing.assert_close(probabilities, logits.softmax(dim=1).amax(dim=1))


def test_the_newest_run_and_its_export_are_the_default(project: Render, trained: Path, tmp_path: Path) -> None:
    for name in ("older", "newer"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    (tmp_path / "runs" / "none").mkdir()
    os.utime(tmp_path / "runs" / "newer" / "checkpoints" / "last.pt")
    np.save(tmp_path / "digits.npy", np.zeros((2, 8, 8)))
    parts = ("export.py", "predict.py digits.npy", "predict.py digits.npy | head -0")
    line = " && ".join(f"{sys.executable} {project()}/{part}" for part in parts)
    printed = output_of(["bash", "-c", line], tmp_path, os.environ, timeout=60).splitlines()
    assert printed[0] == "runs/newer/export"
    assert [json.loads(text).keys() for text in printed[1:]] == 2 * [{"file", "digit", "probability"}]


def test_a_run_may_train_on_while_it_is_exported(
    export: Any, weights: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces best.pt between the look at its bytes and the reading."""
    folder, looks = run_dir / "checkpoints", []

    def then_replaced(path: Path) -> str:
        looks.append(digest(path))
        if len(looks) == 1:
            os.replace(folder / "step-00000001.pt", folder / "best.pt")
        return looks[-1]

    monkeypatch.setattr(weights, "sha256_of", then_replaced)
    about = json.loads((export.export(run_dir) / "model.json").read_text())
    assert len({*looks}) == 2
    assert (about["step"], about["checkpoint_sha256"]) == (1, looks[1])


def test_a_damaged_or_missing_checkpoint_is_not_exported(
    export: Any, run_dir: Path, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = run_dir / "checkpoints" / "best.pt"
    damage(best)
    assert f"{best} is damaged: " in refused(export.export, run_dir)
    (tmp_path / "cut.pt").write_bytes(best.read_bytes()[:1000])
    best.unlink()
    first = "the best comes with the first evaluation, so name another"
    assert f"there is no checkpoint {best}: {first}" in refused(export.export, run_dir)
    assert "cannot be read as a checkpoint" in refused(export.export, tmp_path / "cut.pt")
    monkeypatch.chdir(tmp_path)
    assert "there is no run in" in refused(export.export)
    assert not [*tmp_path.rglob("model.*")]


def test_averaged_weights_are_exported_where_there_are_some(export: Any, run_dir: Path, tmp_path: Path) -> None:
    last = checkpoint(run_dir)
    average = {name: tensor + 1 for name, tensor in last["model"].items() if name.endswith("weight")}
    last["update"]["average"] = average
    torch.save(last, tmp_path / "averaged.pt")
    folder = export.export(tmp_path / "averaged.pt", tmp_path / "out")
    assert differences(load_file(folder / "model.safetensors"), last["model"] | average) == []
    assert json.loads((folder / "model.json").read_text())["weights"] == "average"


class Tied(nn.Module):
    """A network whose head has the weights of its embedding, and a buffer that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())


def test_tied_weights_are_in_the_file_once_and_tied_again(weights: Any, tmp_path: Path) -> None:
    model, file = Tied(), tmp_path / "model.safetensors"
    torch.save({"model": model.state_dict()}, tmp_path / "tied.pt")
    of_checkpoint = weights.read_weights(tmp_path / "tied.pt")
    overlapping = of_checkpoint | {"rows": of_checkpoint["embedding.weight"][1:3]}
    weights.write_safetensors(overlapping, file)
    assert differences(weights.read_weights(file), overlapping) == []
    weights.write_safetensors(of_checkpoint, file)
    assert differences(weights.read_weights(file), dict(model.state_dict())) == []
    assert load_file(file).keys() == model.state_dict().keys() - {"head.weight"}
    other = Tied()
    load_model(other, file)  # as other programs do
    assert differences(dict(other.state_dict()), dict(model.state_dict())) == []
    saved = torch.load(tmp_path / "tied.pt", weights_only=True)
    averaged, _ = weights.weights_of(saved | {"update": {"average": {"embedding.weight": torch.ones(5, 3)}}})
    assert averaged["head.weight"].sum() == 15


def test_a_dtype_that_safetensors_lack_is_refused(weights: Any, package: Package, tmp_path: Path) -> None:
    with pytest.raises(
        package("runtime.exits").UserError, match=r"safetensors hold no torch.complex128, as phases of the model has"
    ):
        weights.write_safetensors({"phases": torch.ones(3, dtype=torch.complex128)}, tmp_path / "model.safetensors")
    assert not [*tmp_path.iterdir()]


def test_options_of_another_version_do_no_harm(export: Any, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export.export(run_dir)
    about = json.loads((folder / "model.json").read_text())
    about["options"] |= {"epochs": 7, "windows": 3}
    del about["options"]["seed"]
    (folder / "model.json").write_text(json.dumps(about))
    export.load_model(folder)
    assert capsys.readouterr().err == "model.json has options that this program does not: windows\n"
    config = export.config_of(about["options"])
    assert (config.epochs, config.seed, config.run_dir) == (7, 0, Path(about["options"]["run_dir"]))


def parameters(run_dir: Path, name: str = "last.pt") -> dict[str, Tensor]:
    """The weights of a checkpoint, without BatchNorm's statistics."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {key: value for key, value in checkpoint(run_dir, name)["model"].items() if not key.endswith(statistics)}


def test_a_folder_is_resumed_from_its_newest_file(project: Render, trained: Path, tmp_path: Path) -> None:
    newest = trained / "checkpoints" / "step-00000003.pt"
    for name, source in (("run", trained), ("below", trained / "checkpoints"), ("file", newest)):
        options = ("--resume", str(source), "--max-steps", "6")
        train_on_ranks(project(), tmp_path / name, *options, processes=1)
        assert_same_state(checkpoint(tmp_path / name), checkpoint(tmp_path / "run"))
    printed = train_on_ranks(project(), tmp_path / "none", "--resume", str(tmp_path), processes=1, code=2)
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
    assert f"began with 14 of 14 tensors of {folder / 'model.safetensors'}" in (second / "train.log").read_text()
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


@pytest.mark.parametrize("name", SAVED)
def test_files_of_other_programs_are_loaded(
    name: str, weights: Any, package: Package, trained: Path, tmp_path: Path, logged: Logged
) -> None:
    tensors, model, path = checkpoint(trained)["model"], package("model").build_model(None), tmp_path / name
    SAVED[name](tensors, path)
    weights.load_what_fits(model, path)
    assert differences(dict(model.state_dict()), dict(tensors)) == []
    assert logged() == [f"began with 14 of 14 tensors of {path}"]


def test_what_does_not_fit_is_named_and_the_rest_is_loaded(
    weights: Any, package: Package, trained: Path, tmp_path: Path, logged: Logged
) -> None:
    """Some weights have another name, some another shape, and many are no part of the model."""
    source, model = checkpoint(trained)["model"], package("model").build_model(None)
    fresh = {
        name: value.clone()
        for name, value in model.state_dict().items()
        if name.startswith(("classifier", "features.1.1.bias"))
    }
    others = source | {"classifier.2.weight": torch.zeros(3, 256), "head.bias": source["classifier.2.bias"]}
    others["features.1.1.bias"] = source["features.1.1.bias"].to(torch.int8)  # quantised
    others["features.1.1.num_batches_tracked"] = source["features.1.1.num_batches_tracked"].to(torch.int32)  # loaded
    others |= {f"layer{number}": torch.zeros(1) for number in range(50)}
    del others["classifier.2.bias"]
    save_file(others, tmp_path / "others.safetensors")
    weights.load_what_fits(model, tmp_path / "others.safetensors")
    assert differences(dict(model.state_dict()), source | fresh) == []
    began, missing, misshapen, foreign = logged()
    stay = "stay as build_model() made them"
    assert began.startswith("began with 11 of 64 tensors")
    assert missing == f"1 tensors are not in it, and {stay}: classifier.2.bias"
    both = "classifier.2.weight 3 x 256, 10 x 256 in the model, features.1.1.bias 64 of torch.int8, 64 in the model"
    assert misshapen == f"2 tensors have another shape or kind, and {stay}: {both}"
    listed = r"51 tensors are not in the model, and were left out: head.bias, layer0, .*, \.\.\. \(51 in all\)"
    assert re.fullmatch(listed, foreign)


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
    assert (linear.weight.tolist(), linear.get_buffer("names").tolist()) == ([[1, 1]], [0, 0, 0])


@pytest.mark.parametrize("name", UNUSABLE)
def test_weights_that_cannot_be_used_are_named(name: str, weights: Any, package: Package, tmp_path: Path) -> None:
    content, words = UNUSABLE[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif name.endswith(".safetensors"):
        save_file(content, tmp_path / name)
    else:
        torch.save(content, tmp_path / name)
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
    printed = output_of_fork("evaluate.py", tmp_path / "trained", project=project(), code=2)
    first = f"error: {best} comes with the first evaluation: name {best.with_name('last.pt')}\n"
    assert words in printed if there else printed == first
    assert printed.count("\n") == 1
