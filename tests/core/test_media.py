"""What show() of task.py returns after an evaluation is there to be looked at, and changes nothing."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import Package, Render, of_package
from tests.core.test_records import data_of
from tests.support.ranks import assert_same_state, error_in, train_on_ranks
from tests.support.training import checkpoint
from tools.rewriting import extend

media = of_package("runtime.media")
# Appended to task.py. It draws numbers, and communicates as generate() of a sharded model would.
SHOW = """

def show(model: Any, batch: Any) -> dict[str, Any]:
    assert not model.training and not torch.is_grad_enabled()
    images, labels = batch
    together = reduce_tensor(torch.ones(()), "sum")
    noise = torch.rand(3, 1, 8, 8)
    return {"digits": images, "noise": noise, "logits": model(images).flatten(), "text": f"<{together:.0f} ranks>"}
"""
IMPORTS = "import torch\nfrom .runtime import reduce_tensor\n"
OPTIONS = ("--epochs", "2", "--global-batch-size", "96", "--log-every", "9")


@pytest.fixture
def showing(own_project: Render) -> Path:
    project = own_project(logging="csv")
    extend(project / "ddp_project" / "task.py", SHOW, imports=IMPORTS)
    return project


def test_what_is_shown_is_on_the_page_and_changes_no_bit(showing: Path, project: Render, tmp_path: Path) -> None:
    train_on_ranks(showing, tmp_path / "run", *OPTIONS)
    train_on_ranks(project(logging="csv"), tmp_path / "plain", *OPTIONS)
    assert_same_state(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "plain"))
    [run] = data_of(tmp_path / "run" / "report.html")
    kinds = {each["name"]: each["kind"] for each in run["shown"]}
    assert kinds == {"digits": "png", "logits": "svg", "noise": "png", "text": "txt"}
    assert run["shown"][-1]["content"] == "<2 ranks>"
    first = np.asarray(Image.open(tmp_path / "run" / "shown" / "digits.png"))
    assert first.shape == (20, 80, 3), "two rows of eight images of 8 x 8 pixels, with margins"
    assert not (tmp_path / "plain" / "shown").exists()


def test_a_disk_that_takes_nothing_to_show_ends_no_run(showing: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "shown").touch()  # where the folder would be
    output = train_on_ranks(showing, tmp_path / "run", *OPTIONS)[0]
    assert (
        len(re.findall("rank 0 WARNING .*File exists: .*shown", output)) == 8
    ), "four names at each of two evaluations"
    assert "done: best validation accuracy" in output


def test_what_a_system_leaves_beside_it_is_not_shown(package: Package, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_bytes(b"caf\xe9")
    for name in (".DS_Store", ".nfs0001.txt", "0.png.tmp", "x.pyc"):
        (tmp_path / name).write_bytes(b"\xff\x00")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "folder.txt").mkdir()
    shown = package("runtime.report").shown_in(tmp_path)
    assert shown == [{"name": "note", "kind": "txt", "content": "caf\ufffd"}]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", ".x", "a/b", "x.y"])
def test_what_is_shown_is_in_its_folder_under_any_name(name: str, media: Any, tmp_path: Path) -> None:
    kinds = {".txt": ["text"], ".svg": np.ones(3), ".png": np.zeros((1, 4, 4, 3), np.uint8)}
    for suffix in (*kinds, ".txt"):  # in place of what another kind has left
        media.write_media(tmp_path / "shown", name, kinds[suffix])
        assert [each.name for each in tmp_path.iterdir()] == ["shown"]
        [file] = (tmp_path / "shown").iterdir()
        assert (file.suffix, file.name.startswith(".")) == (suffix, False)


REFUSED: dict[str, tuple[Any, str]] = {
    "no dict": ([1], "show() must return a dict, not list"),
    "two dimensions": ({"x": torch.zeros(3, 3)}, '"x" is of shape (3, 3)'),
    "four channels": ({"x": torch.zeros(1, 4, 8, 8)}, '"x" is of shape (1, 4, 8, 8)'),
    "a number": ({"x": 3.0}, '"x" is of type float'),
    "an array of text": ({"x": np.array(["a"])}, '"x" is of type ndarray'),
    "a list of numbers": ({"x": [3.0]}, '"x" is of type list'),
}


def test_what_cannot_be_shown_ends_the_run_in_one_line(showing: Path, tmp_path: Path) -> None:
    extend(showing / "ddp_project" / "task.py", "\n\ndef show(model, batch):\n    return {'x': torch.zeros(3, 3)}\n")
    line = error_in(train_on_ranks(showing, tmp_path / "run", *OPTIONS, code=2))
    wanted = "images of shape (n, 1 or 3, height, width), values of shape (n,), or texts"
    assert line == f'error: task.py: show() must return {wanted}, and "x" is of shape (3, 3)'


@pytest.mark.parametrize("what", REFUSED)
def test_only_images_values_and_texts_can_be_shown(what: str, media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value, line = REFUSED[what]
    monkeypatch.setattr(media, "optional", lambda name: lambda model, batch: value)
    with pytest.raises(media.UserError, match=re.escape(line)):
        media.shown(torch.nn.Identity(), [(torch.zeros(2), True)])


def test_images_without_pillow_are_refused(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "find_spec", lambda name: None)
    with pytest.raises(
        media.UserError, match=r'^task\.py: show\(\) returns images, "x", which need Pillow: pip install'
    ):
        media.media_of("x", torch.zeros(1, 1, 2, 2))


def test_values_keep_their_range(media: Any) -> None:
    images = torch.tensor([[0.0, 0.5, 1.0, 7.0, -1.0, torch.nan]]).bfloat16()[:, None, None].expand(20, 3, 1, 6)
    shown = media.media_of("x", images)
    assert (shown.shape, shown[3, 0, :, 1].tolist()) == ((16, 1, 6, 3), [0, 128, 255, 255, 0, 0])
    assert (
        media.media_of("x", torch.full((1, 4, 4), 9, dtype=torch.uint8)).tolist() == np.full((1, 4, 4, 3), 9).tolist()
    )
    assert Image.open(io.BytesIO(media.png(media.in_rows(shown)))).size == (64, 6)
    assert media.media_of("x", np.array([1.0, np.inf, 2.0])).tolist() == [1, 2]
    assert media.bars(np.array([])).count("<rect") == media.bars(np.full(9, 3.5)).count("<rect") == 40
    assert media.media_of("x", ("one", "two")) == ["one", "two"]
    assert media.media_of("x", np.zeros((2, 4, 4, 3))[:, ::-1].transpose(0, 3, 1, 2)).shape == (2, 4, 4, 3)


@pytest.mark.parametrize("values", [[1.0, 1.0000000000000002], [-1.7e308, 1.7e308], [1e-320, 3e-320], [2.0]])
def test_any_finite_values_are_a_histogram(values: list[float], media: Any) -> None:
    assert "<rect" in media.bars(np.array(values))


def test_nothing_to_show_is_left_out(media: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {"images": torch.zeros(0, 1, 8, 8), "values": torch.full((3,), torch.nan), "texts": [], "one": "text"}
    monkeypatch.setattr(media, "optional", lambda name: lambda model, batch: empty)
    assert media.shown(torch.nn.Identity(), [(torch.zeros(2), True)]) == {"one": ["text"]}
