"""export.py writes the weights of a checkpoint, and predict.py asks them."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from tests.conftest import Package, Render
from tests.support.processes import output_of
from tests.support.ranks import train_on_ranks
from tests.support.training import HAS_GPU, checkpoint, differences

Refused = Callable[..., str]


def script(project: Path, name: str, *arguments: str | Path) -> str:
    """Run a script of a project in a process of its own, and return what it printed."""
    return output_of([sys.executable, project / name, *arguments], project, os.environ, timeout=60)


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
    """A copy of it, for a test to change."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def export(package: Package) -> Any:
    return package("runtime.export")


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
    folder = Path(script(project(), "export.py", run_dir).strip())
    assert folder == run_dir / "export"
    best, build_model = checkpoint(run_dir, "best.pt"), package("model").build_model
    expected, found = build_model().eval(), build_model().eval()
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

    script(project(), "predict.py", folder, project() / "ddp_project" / "digits.npz", "--to", tmp_path / "answers")
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
    export: Any, package: Package, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces best.pt between the look at its bytes and the reading."""
    weights, folder = package("runtime.weights"), run_dir / "checkpoints"
    looks = []

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
    assert f"there is no checkpoint {best}" in refused(export.export, run_dir)
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


def test_tied_weights_are_in_the_file_once_and_tied_again(package: Package, tmp_path: Path) -> None:
    weights, model, file = package("runtime.weights"), Tied(), tmp_path / "model.safetensors"
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


def write_bad_files(folder: Path) -> None:
    for name, array in {"flat": np.zeros((2, 64)), "bright": np.full((2, 8, 8), 255), "words": np.array("a")}.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "other.npz", labels=np.zeros((2, 8, 8)))
    np.savez_compressed(folder / "cut.npz", images=np.arange(128.0).reshape(2, 8, 8) / 8)
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:200])
    (folder / "text.npy").write_text("digits\n")
    (folder / "empty.npy").touch()
    (folder / "folder.npy").mkdir()


def test_what_cannot_be_predicted_is_named(
    export: Any, package: Package, run_dir: Path, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, to, good = export.export(run_dir), tmp_path / "answers", tmp_path / "good.npy"
    (tmp_path / "bad").mkdir()
    write_bad_files(tmp_path / "bad")
    np.save(good, np.zeros((2, 8, 8)))
    for path in (*(tmp_path / "bad").iterdir(), tmp_path / "missing.npy"):
        words = "does not hold images" if path.name in ("flat.npy", "bright.npy") else "cannot be read as images"
        assert f"{path} {words}" in refused(export.predict, [folder, good, path], to)
        assert not to.exists()
    assert "name files behind" in refused(export.predict, [folder])
    assert "does not hold model.safetensors" in refused(export.predict, [run_dir, good])
    if not HAS_GPU:
        assert "--device cuda needs a GPU" in refused(export.predict, [folder, good], to, "cuda")

    # The task leaves the error of a file as it is; what it yields are tensors.
    answers = ({"answer": torch.tensor([float(line)])} for line in ("1.5", "2"))
    monkeypatch.setattr(package("task"), "predict", lambda model, file: answers if file.open() else None)
    line = refused(export.predict, [folder, folder / "model.json", folder / "none"], to)
    assert f"{folder / 'none'} cannot be read: No such file or directory" in line
    assert not to.exists()
    monkeypatch.delattr(package("task"), "predict")  # as in a task of an earlier version
    line = refused(export.predict, [folder, run_dir])
    assert "task.py lacks def predict(model: nn.Module, file: Path) -> Iterator[dict[str, Any]]: add it" in line

    damage(folder / "model.safetensors")
    assert "model.safetensors is damaged" in refused(export.load_model, folder)


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
