"""--init-from takes weights that others have published: shards, folders, other names, and URLs."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.conftest import Logged, Package, Render, of_package
from tests.support.processes import wait_until
from tests.support.ranks import error_in, kill_all, start_ranks, train_on_ranks
from tests.support.training import checkpoint, differences
from tools.rewriting import extend

weights, pretrained = map(of_package, ("runtime.weights", "runtime.pretrained"))
NO_STEP = ("--max-steps", "1", "--lr", "0", "--weight-decay", "0")
STRIPPED = '\n\ndef rename(name):\n    return name.removeprefix("backbone.")\n'


class Server(ThreadingHTTPServer):
    """Serves a folder, counts what is asked for, and can hold the second half of each file back."""

    def __init__(self, folder: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.goes_on = Event()
        self.goes_on.set()
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content[: len(content) // 2])
        outputfile.flush()
        self.server.goes_on.wait()
        outputfile.write(content[len(content) // 2 :])

    def log_message(self, *about: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    with Server(tmp_path / "served") as server:
        yield server
        server.goes_on.set()
        server.shutdown()


def tensors_of(package: Package) -> dict[str, Tensor]:
    """Weights of the model, other than those that it begins with."""
    torch.manual_seed(3)
    model = package("model").build_model(None)
    return {name: value.clone() for name, value in model.state_dict().items()}


def write_shards(tensors: dict[str, Tensor], folder: Path, *, safe: bool) -> None:
    """Write two files and their index, as transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    places = {name: f"{stem}-{i % 2 + 1:05d}-of-00002.{suffix}" for i, name in enumerate(tensors)}
    for file in {*places.values()}:
        part = {name: tensors[name] for name in tensors if places[name] == file}
        (save_file if safe else torch.save)(part, folder / file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("safe", [True, False])
def test_shards_are_read_by_their_index_or_one_of_their_names(
    safe: bool, weights: Any, package: Package, tmp_path: Path, logged: Logged
) -> None:
    tensors, stem = tensors_of(package), "model" if safe else "pytorch_model"
    write_shards(tensors, tmp_path, safe=safe)
    for file in sorted(tmp_path.iterdir()):
        model = package("model").build_model(None)
        weights.load_what_fits(model, file)
        assert differences(dict(model.state_dict()), tensors) == []
        assert logged()[-1] == f"began with 14 of 14 tensors of {file}"
    first, index = min(tmp_path.glob("*-00001-*")), min(tmp_path.glob("*.index.json"))
    first.unlink()
    for file in (index, tmp_path / first.name.replace("00001-of", "00002-of")):
        with pytest.raises(package("runtime.exits").UserError, match=f"lacks {stem}-00001-of-00002"):
            weights.load_what_fits(model, file)
    for wrong in ('["a"]', '{"a": 3}', '{"a": "../model.safetensors"}'):
        index.write_text(f'{{"weight_map": {wrong}}}')
        with pytest.raises(package("runtime.exits").UserError, match="cannot be read as an index of weights"):
            weights.load_what_fits(model, index)


def test_a_folder_of_hugging_face_is_taken_under_other_names(
    own_project: Render, package: Package, tmp_path: Path
) -> None:
    """All ranks have its weights, and the log names what does not fit on both sides."""
    project, tensors = own_project(), tensors_of(package)
    extend(project / "ddp_project" / "task.py", STRIPPED)
    named = {f"backbone.{name}": value for name, value in tensors.items()}
    del named["backbone.classifier.2.bias"]
    named |= {"backbone.classifier.2.weight": torch.zeros(1000, 256), "pooler.weight": torch.zeros(2)}
    write_shards(named, tmp_path / "llm", safe=True)
    train_on_ranks(project, tmp_path / "run", *NO_STEP, "--init-from", str(tmp_path / "llm"))
    began = checkpoint(tmp_path / "run")["model"]
    for name in ("features.0.0.weight", "features.1.1.bias"):
        assert began[name].equal(tensors[name])
    log = (tmp_path / "run" / "train.log").read_text()
    assert "began with 12 of 14 tensors" in log
    assert "1 tensors are not in it, and stay as build_model() made them: classifier.2.bias" in log
    assert "stay as build_model() made them: classifier.2.weight 1000 x 256, 10 x 256 in the model" in log
    assert "1 tensors are not in the model, and were left out: pooler.weight" in log


@pytest.mark.parametrize(
    ("renamed", "said"),
    [
        ("lambda name: 3", r"task.py: rename\('a'\) must return a name, or None to leave it out, not 3"),
        ('lambda name: "one"', r"task.py: rename\(\) gives b the name one, which another tensor has"),
    ],
)
def test_a_wrong_rename_is_named(
    renamed: str, said: str, weights: Any, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package("task"), "rename", eval(renamed), raising=False)
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(package("runtime.exits").UserError, match=said):
        weights.load_what_fits(torch.nn.Linear(1, 1), tmp_path / "model.safetensors")


def test_one_rank_downloads_and_a_kill_leaves_nothing_half(
    project: Render, package: Package, server: Server, tmp_path: Path
) -> None:
    save_file(tensors_of(package), tmp_path / "served" / "model.safetensors")
    options = (*NO_STEP, "--init-from", f"{server.url}/model.safetensors?download=true")
    server.goes_on.clear()
    ranks = start_ranks(project(), tmp_path / "killed", *options, outputs=tmp_path)
    wait_until(lambda: server.asked, told=ranks[0].output.read_text)
    kill_all(ranks)
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]
    assert not (tmp_path / "killed").exists()
    server.goes_on.set()
    server.asked.clear()
    for name in ("first", "second"):
        train_on_ranks(project(), tmp_path / name, *options)
    assert [*server.asked.values()] == [1]
    began = checkpoint(tmp_path / "second")["model"]
    assert began["features.0.0.weight"].equal(tensors_of(package)["features.0.0.weight"])


def test_a_folder_of_a_url_is_brought_anew_when_it_has_changed(
    pretrained: Any,
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With the shards of its index, and no other file; without the network, what was brought whole before is used."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    tensors, there = tensors_of(package), tmp_path / "there"
    write_shards(tensors, there, safe=True)
    (there / "pytorch_model.bin").write_text("large, and another form of the same")
    url = f"file://{there}"
    place = pretrained.download(url)
    assert {*map(str, os.listdir(place))} == {*map(str, os.listdir(there))} - {"pytorch_model.bin"} | {
        "downloading",
        "downloaded.json",
    }
    capfd.readouterr()
    assert pretrained.download(url) == place
    assert capfd.readouterr().err == ""
    shard = there / "model-00001-of-00002.safetensors"
    save_file({"new": torch.ones(1)}, shard)
    pretrained.download(url)
    assert (place / shard.name).read_bytes() == shard.read_bytes()
    assert capfd.readouterr().err.count("downloading") == 1
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        save_file({"newer": torch.ones(1)}, there / name)
    arrived: list[Path] = []

    def bring_one(files: Any, name: str, path: Path) -> None:
        if arrived:
            raise OSError("unplugged")
        arrived.append(path)
        path.write_bytes(files.cat_file(name))

    with monkeypatch.context() as cut:
        cut.setattr(pretrained, "get_file", bring_one)
        with pytest.raises(package("runtime.exits").UserError, match="unplugged"):
            pretrained.download(url)
    pretrained.download(url)
    capfd.readouterr()
    there.rename(tmp_path / "moved")
    assert pretrained.download(url) == place
    assert f"warning: --init-from {url}: FileNotFoundError" in capfd.readouterr().err


def test_the_index_of_a_stranger_names_no_file_elsewhere(
    pretrained: Any, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be written there, outside of the folder of the download."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    model = tmp_path / "there" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"weight": "../weights"}}')
    (tmp_path / "there" / "weights").write_text("not asked for")
    with pytest.raises(package("runtime.exits").UserError, match="weights' is no name of a file in its folder"):
        pretrained.download(f"file://{model}")
    assert not [*(tmp_path / "cache").rglob("weights")]
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"weight": "model.safetensors.index.json"}}')
    pretrained.download(f"file://{model}")  # ends, though the index names itself


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{}/nothing.safetensors", "FileNotFoundError"),
        ("http://127.0.0.1:9/model.safetensors", "Client"),
        ("foo://org/model", "ValueError Protocol not known: foo"),
        ("file://{tmp}/empty", "there is none of model.safetensors, "),
    ],
)
def test_a_url_without_weights_is_refused_in_one_line(
    url: str, said: str, project: Render, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    url = url.format(server.url, tmp=tmp_path)
    printed = train_on_ranks(project(), tmp_path / "run", "--init-from", url, code=2)
    assert said in error_in(printed)
    assert url.partition("://")[2] in error_in(printed)
    assert not (tmp_path / "run").exists()
