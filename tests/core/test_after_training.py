"""export.py writes the weights of a checkpoint, predict.py asks them, and --init-from begins with them."""

import functools
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
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from tests.conftest import Package, Render
from tests.support.processes import output_of
from tests.support.ranks import assert_same_state, lone_error_in, train_on_ranks
from tests.support.training import HAS_GPU, assert_same_weights, checkpoint, differences


def script(project: Path, name: str, *arguments: str | Path) -> str:
    """Run a script of a project in a process of its own, and return what it printed."""
    return output_of([sys.executable, project / name, *arguments], project, os.environ, timeout=60)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


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
def refused(package: Package, capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[[], Any]], str]:
    """Does what must end with code 2 and one line, and returns that line."""

    def get(work: Callable[[], Any]) -> str:
        capsys.readouterr()
        assert package("runtime.exits").finish(work) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("error: ")
        assert error.count("\n") == 1
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
    assert about["options"] == best["config"]
    assert about["code"] == best["code"]
    assert (about["step"], about["epoch"], about["weights"]) == (3, 0, "last")
    assert about["best"] == best["progress"]["best_metrics"]
    assert about["checkpoint_sha256"] == digest(run_dir / "checkpoints" / "best.pt")
    assert about["sha256"] == digest(folder / "model.safetensors")

    script(project(), "predict.py", folder, project() / "ddp_project" / "digits.npz", "--to", tmp_path / "answers")
    answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [answer["digit"] for answer in answers] == logits.argmax(dim=1).tolist()
    torch.testing.assert_close(
        torch.tensor([answer["probability"] for answer in answers]), logits.softmax(dim=1).amax(dim=1)
    )


def test_the_newest_run_and_its_export_are_the_default(project: Render, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "runs" / "older")
    (tmp_path / "runs" / "none").mkdir()
    shutil.copytree(trained, tmp_path / "runs" / "newer")
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
    export: Any, run_dir: Path, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = run_dir / "checkpoints" / "best.pt"
    assert f"{best} is damaged: " in refused(lambda: export.export(damaged(best).parents[1]))
    (tmp_path / "cut.pt").write_bytes(best.read_bytes()[:1000])
    best.unlink()
    assert f"there is no checkpoint {best}" in refused(lambda: export.export(run_dir))
    assert "cannot be read as a checkpoint" in refused(lambda: export.export(tmp_path / "cut.pt"))
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
    average = {"embedding.weight": torch.ones(5, 3)}
    averaged, kind = weights.weights_of(
        {"model": torch.load(tmp_path / "tied.pt", weights_only=True)["model"], "update": {"average": average}}
    )
    assert (kind, averaged["head.weight"].sum()) == ("average", 15)
    assert torch.equal(averaged["head.bias"], model.head.bias)


def bad_files(folder: Path) -> dict[str, Path]:
    np.save(folder / "flat.npy", np.zeros((2, 64)))
    np.save(folder / "bright.npy", np.full((2, 8, 8), 255))
    np.save(folder / "words.npy", np.full((2, 8, 8), "a"))
    np.savez(folder / "other.npz", labels=np.zeros((2, 8, 8)))
    np.savez_compressed(folder / "cut.npz", images=np.arange(128.0).reshape(2, 8, 8) / 8)
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:200])
    (folder / "text.npy").write_text("digits\n")
    (folder / "empty.npy").touch()
    (folder / "folder.npy").mkdir()
    return {path.name: path for path in folder.iterdir()} | {"missing": folder / "missing.npy"}


def test_predictions_may_compute_gradients(
    export: Any, package: Package, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slopes(model: nn.Module, file: Path) -> list[dict[str, Any]]:
        with torch.enable_grad():
            image = torch.ones(1, 1, 8, 8).requires_grad_()
            [slope] = torch.autograd.grad(model(image).square().sum(), image)
        return [{"slope": slope.norm(), "tracked": model(image).requires_grad}]

    monkeypatch.setattr(package("task"), "predict", slopes)
    export.predict([export.export(run_dir), run_dir], tmp_path / "answers")
    answer = json.loads((tmp_path / "answers").read_text())
    assert answer["slope"] > 0
    assert not answer["tracked"]


def test_what_cannot_be_predicted_is_named(
    export: Any, run_dir: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    folder, to = export.export(run_dir), tmp_path / "answers"
    (tmp_path / "bad").mkdir()
    np.save(tmp_path / "good.npy", np.zeros((2, 8, 8)))
    for name, path in bad_files(tmp_path / "bad").items():
        words = "does not hold images" if name in ("flat.npy", "bright.npy") else "cannot be read as images"
        assert f"{path} {words}" in refused(lambda file=path: export.predict([folder, tmp_path / "good.npy", file], to))
        assert not to.exists()
    assert "name files behind" in refused(lambda: export.predict([folder]))
    assert "does not hold model.safetensors" in refused(lambda: export.predict([run_dir, tmp_path / "good.npy"]))
    if not HAS_GPU:
        wanted = functools.partial(export.predict, [folder, tmp_path / "good.npy"], to, "cuda")
        assert "--device cuda needs a GPU" in refused(wanted)
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    assert "model.safetensors is damaged" in refused(lambda: export.load_model(folder))


def test_errors_of_a_task_that_predicts_are_told_in_one_line(
    export: Any, package: Package, run_dir: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task leaves the error of a file as it is; what it yields are tensors. One of an earlier version lacks it."""
    answers = ({"answer": torch.tensor([float(line)])} for line in ("1.5", "2"))
    monkeypatch.setattr(package("task"), "predict", lambda model, file: answers if file.open() else None)
    folder, to = export.export(run_dir), run_dir / "answers"
    line = refused(lambda: export.predict([folder, folder / "model.json", folder / "none"], to))
    assert f"{folder / 'none'} cannot be read: No such file or directory" in line
    assert not to.exists()
    monkeypatch.delattr(package("task"), "predict")
    line = refused(lambda: export.predict([folder, run_dir]))
    assert "task.py lacks def predict(model: nn.Module, file: Path) -> Iterator[dict[str, Any]]: add it" in line


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


def test_a_model_is_built_from_options_of_their_types(own_project: Render, run_dir: Path, tmp_path: Path) -> None:
    place = own_project()
    options = place / "ddp_project" / "options.py"
    options.write_text(
        "from dataclasses import dataclass\nfrom enum import Enum\n\n\nclass Kind(Enum):\n    A = 1\n    B = 2\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Options:\n    kind: Kind = Kind.A\n"
        "    widths: tuple[int, ...] = ()\n"
    )
    program = (
        "from ddp_project.runtime.export import config_of\n"
        "found = config_of({'kind': 'B', 'widths': [3, 4], 'run_dir': 'runs/a', 'lr': 0.5})\n"
        "print(found.kind, found.widths, repr(found.run_dir), found.lr)"
    )
    printed = output_of([sys.executable, "-c", program], place, os.environ)
    assert printed == "Kind.B (3, 4) PosixPath('runs/a') 0.5\n"


def log(run_dir: Path) -> str:
    return (run_dir / "train.log").read_text()


def parameters(run_dir: Path, name: str = "last.pt") -> dict[str, Tensor]:
    """The weights of a checkpoint, without BatchNorm's statistics."""
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {key: value for key, value in checkpoint(run_dir, name)["model"].items() if not key.endswith(statistics)}


def test_a_run_begins_with_weights_of_a_file(project: Render, run_dir: Path, export: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    options = ("--max-steps", "2", "--lr", "0", "--seed", "5")
    train_on_ranks(project(), first, *options, "--init-from", str(run_dir / "checkpoints" / "best.pt"))
    assert differences(parameters(first), parameters(run_dir, "best.pt")) == []
    began = checkpoint(first)["model"]["features.0.1.num_batches_tracked"]
    assert began == checkpoint(run_dir, "best.pt")["model"]["features.0.1.num_batches_tracked"] + 2

    weights = export.export(run_dir) / "model.safetensors"
    train_on_ranks(project(), second, *options, "--init-from", str(weights))
    assert_same_state(checkpoint(first), checkpoint(second))
    assert f"began with 14 of 14 tensors of {weights}" in log(second)
    assert json.loads((second / "config.json").read_text())["init_from"] == str(weights)

    weights.unlink()
    again = ("--max-steps", "3", "--seed", "5", "--resume")
    train_on_ranks(project(), second, *again)
    train_on_ranks(project(), first, *again, "--init-from", str(weights))
    assert_same_weights(checkpoint(first), checkpoint(second))
    for run in (first, second):
        (line,) = [line for line in log(run).splitlines() if "other options than before" in line]
        assert "--max-steps 3 (was 2)" in line
        assert "init-from" not in line


def other_weights(run_dir: Path, folder: Path) -> Path:
    """A file in which some weights have another name, some another shape, and many are no part of the model."""
    weights = checkpoint(run_dir)["model"]
    weights["classifier.2.weight"] = torch.zeros(3, 256)
    weights["head.bias"] = weights.pop("classifier.2.bias")
    weights |= {f"layer{number}": torch.zeros(1) for number in range(50)}
    save_file(weights, folder / "others.safetensors")
    return folder / "others.safetensors"


def test_what_does_not_fit_is_named_and_the_rest_is_loaded(project: Render, trained: Path, tmp_path: Path) -> None:
    file, run_dir, plain = other_weights(trained, tmp_path), tmp_path / "run", tmp_path / "plain"
    options = ("--max-steps", "1", "--lr", "0", "--init-from", str(file))
    train_on_ranks(project(), run_dir, *options)
    train_on_ranks(project(), plain, *options[:4], processes=1)
    own, fresh, source = (parameters(each) for each in (run_dir, plain, trained))
    head = {name for name in own if name.startswith("classifier")}
    assert len(head) == 2
    assert differences({name: own[name] for name in head}, {name: fresh[name] for name in head}) == []
    assert [name for name in own if not torch.equal(own[name], source[name])] == sorted(head, reverse=True)
    (began,) = [line for line in log(run_dir).splitlines() if "began with 12 of 64 tensors" in line]
    lines = [line.partition(" INFO ")[2] for line in log(run_dir).splitlines() if " tensors " in line and line != began]
    assert lines[0] == "1 tensors are not in it, and stay as build_model() made them: classifier.2.bias"
    assert (
        lines[1]
        == "1 tensors have another shape or are of_data, and stay as build_model() made them: classifier.2.weight"
    )
    assert lines[2].startswith(
        "51 tensors are not in the model, and were left out: head.bias, layer0, layer1, layer10, "
    )
    assert lines[2].endswith(", ... (51 in all)")
    assert len(lines) == 3


def test_a_name_of_tied_weights_is_enough(package: Package, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights, model = package("runtime.weights"), Tied()
    save_file({"embedding.weight": torch.ones(5, 3), "head.bias": torch.ones(5)}, tmp_path / "model.safetensors")
    with caplog.at_level("INFO"):
        weights.load_what_fits(model, tmp_path / "model.safetensors")
    assert model.head.weight.sum() == 15
    assert "1 tensors are not in it, and stay as build_model() made them: turned" in caplog.text


def test_what_describes_the_data_stays_that_of_the_run(package: Package, tmp_path: Path) -> None:
    """Names of classes are as long as others now and then, and a table has as many columns as another one."""
    weights, linear = package("runtime.weights"), torch.nn.Linear(2, 1)
    own = torch.zeros(3)
    linear.register_buffer("names", own.clone())
    vars(linear)["of_data"] = ("names",)
    save_file({"weight": torch.ones(1, 2), "names": torch.ones(3)}, tmp_path / "model.safetensors")
    weights.load_what_fits(linear, tmp_path / "model.safetensors")
    assert linear.weight.tolist() == [[1, 1]]
    assert torch.equal(linear.get_buffer("names"), own)


@pytest.mark.parametrize("task", ["images", "tabular"])
def test_the_models_of_tasks_say_what_describes_their_data(task: str, package: Package) -> None:
    network = package("model", task=task).Network
    buffers = {name for name, kind in network.__annotations__.items() if kind is torch.Tensor}
    assert {*network.of_data} == buffers


def saved_as(content: Any, file: Path) -> Path:
    """Save it for torch or, by the name of the file, for safetensors."""
    save_file(content, file) if file.suffix == ".safetensors" else torch.save(content, file)
    return file


def damaged(file: Path) -> Path:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    file.write_bytes(content)
    return file


OTHER = {"other.weight": torch.zeros(3)}
UNUSABLE: dict[str, tuple[Callable[[Path, Path], Path], str, int]] = {
    # what makes a file, of a folder and a run, what is said of it, and the number of processes
    "missing": (lambda folder, run_dir: folder / "none.pt", "there is no file", 1),
    "damaged": (lambda folder, run_dir: damaged(run_dir / "checkpoints" / "best.pt"), "best.pt is damaged: ", 2),
    "foreign": (lambda folder, run_dir: saved_as({"weights": 3}, folder / "a.pt"), "and it has weights", 1),
    "unreadable": (lambda folder, run_dir: empty(folder / "a.safetensors"), "cannot be read as safetensors", 1),
    "other model": (
        lambda folder, run_dir: saved_as(OTHER, folder / "a.safetensors"),
        "(14 in all), and it has other.weight",
        2,
    ),
}


def empty(file: Path) -> Path:
    file.touch()
    return file


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_weights_end_all_ranks_in_one_line(case: str, project: Render, run_dir: Path, tmp_path: Path) -> None:
    make, words, processes = UNUSABLE[case]
    options = ("--init-from", str(make(tmp_path, run_dir)))
    assert words in lone_error_in(train_on_ranks(project(), tmp_path / "new", *options, processes=processes, code=2))
    assert not [*(tmp_path / "new").glob("checkpoints/*")]
