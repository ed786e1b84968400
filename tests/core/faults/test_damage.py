"""A checkpoint whose bytes have changed is found, named and left out, and the newest whole one takes its place."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import Measured, Package, Render
from tests.support.ranks import error_in, train_on_ranks
from tests.support.training import checkpoint

SAVED = (2, 4, 6)


@pytest.fixture(scope="module")
def saved(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", str(SAVED[-1]), "--save-every", "2", "--keep", "3")
    return run_dir


@pytest.fixture
def run_dir(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, in which last.pt is another name of the newest numbered file, too."""
    copy = shutil.copytree(saved, tmp_path / "run")
    (copy / "checkpoints" / "last.pt").unlink()
    (copy / "checkpoints" / "last.pt").hardlink_to(copy / "checkpoints" / f"step-{SAVED[-1]:08d}.pt")
    return copy


def test_every_changed_byte_and_every_cut_is_found(
    run_dir: Path, package: Package, caplog: pytest.LogCaptureFixture, measured: Measured
) -> None:
    first_whole, manifest = package("runtime.checkpoint").first_whole, package("runtime.storage").Manifest
    newest = run_dir / "checkpoints" / "last.pt"
    sound, size, places = newest.read_bytes(), newest.stat().st_size, random.Random(0)
    flips = [0, 1, size // 2, size - 1, *(places.randrange(size) for _ in range(96))]
    cuts = [0, 1, size // 1000, size // 2, size - size // 1000, size - 1]
    flipped = (sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :] for place in flips)
    for content in (*flipped, *(sound[:place] for place in cuts)):
        newest.write_bytes(content)
        assert first_whole(manifest(newest.parent).newest_first()).name == f"step-{SAVED[-2]:08d}.pt"
    assert caplog.text.count("last.pt is damaged") == len(flips) + len(cuts)
    measured("damage", "bytes changed and found, of 100", len(flips))
    measured("damage", "files cut and found, of 6", len(cuts))


@pytest.mark.parametrize("kept", [0, 1])
def test_all_ranks_go_on_from_the_newest_whole_one(kept: int, run_dir: Path, project: Render) -> None:
    last = run_dir / "checkpoints" / "last.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content[: kept * len(content)])
    printed = train_on_ranks(project(), run_dir, "--resume", "--max-steps", "8")
    assert printed[0].count("is damaged: ") == 1
    assert f"rank 0 WARNING {last} is damaged: " in printed[0]
    assert f"resumed from {run_dir / 'checkpoints' / f'step-{SAVED[-2]:08d}.pt'}" in printed[0]
    assert "is damaged" not in printed[1]
    assert checkpoint(run_dir)["progress"]["step"] == 8


def refused(project: Path, run_dir: Path, *options: str) -> str:
    return error_in(train_on_ranks(project, run_dir, *options, code=2))


def test_a_run_without_a_whole_checkpoint_is_refused(run_dir: Path, project: Render) -> None:
    """Whether none is left, or the one that is asked for is damaged."""
    wanted = run_dir / "checkpoints" / f"step-{SAVED[0]:08d}.pt"
    wanted.write_bytes(wanted.read_bytes()[:-1])
    error, size = refused(project(), run_dir, "--resume", str(wanted)), wanted.stat().st_size
    assert f"{wanted} is damaged: it has {size} bytes, and {size + 1}" in error
    files = [*(run_dir / "checkpoints").glob("*.pt")]
    for file in files:
        file.write_bytes(b"no checkpoint")
    assert "no checkpoint is left to go on from" in refused(project(), run_dir, "--resume")
    assert {file.read_bytes() for file in files} == {b"no checkpoint"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": {}}', '{"a": 1}', "\x00\xff"])
def test_a_damaged_manifest_is_named(content: str, run_dir: Path, package: Package) -> None:
    manifest = run_dir / "checkpoints" / "manifest.json"
    manifest.write_text(content)
    with pytest.raises(package("runtime.exits").UserError) as raised:
        package("runtime.storage").Manifest(manifest.parent).newest_first()
    assert f"{manifest} is damaged: delete it to go on" in str(raised.value)


def test_a_run_with_a_damaged_manifest_is_refused_and_goes_on_without_it(run_dir: Path, project: Render) -> None:
    manifest = run_dir / "checkpoints" / "manifest.json"
    manifest.write_text("{")
    assert f"{manifest} is damaged: delete it to go on" in refused(project(), run_dir, "--resume")
    manifest.unlink()
    train_on_ranks(project(), run_dir, "--resume", "--max-steps", "8", "--keep", "9")
    known = json.loads(manifest.read_text())
    names = sorted(file.name for file in manifest.parent.glob("step-*.pt"))
    assert sorted({entry["file"] for entry in known.values()} - {"best.pt", "last.pt"}) == names
