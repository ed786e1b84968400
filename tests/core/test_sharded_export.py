"""What a sharded run has trained leaves it: exports of one file or several, evaluations, runs that begin with it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Render
from tests.support.hardware import small_disk
from tests.support.ranks import error_in, output_of_fork, train_on_ranks
from tests.support.training import checkpoint, differences, whole_checkpoint
from tools.rewriting import extend

EXPORT = "import sys, pathlib; from ddp_project.runtime import export; export.FILE = int(sys.argv[2]); "
EXPORT += "export.export(pathlib.Path(sys.argv[1]))"
LOAD = "import sys, torch; from ddp_project.runtime import load_model; "
LOAD += "torch.save(load_model(sys.argv[1]).state_dict(), sys.argv[2])"
# Exports a run whose checkpoints become other ones when a function is called for the first time.
REPLACED = """
import sys
from pathlib import Path
from ddp_project.runtime import export, weights

run_dir, newer, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
module = export if hasattr(export, name) else weights
called = getattr(module, name)

def replaced(*arguments):
    if newer.exists():
        (run_dir / "checkpoints").rename(run_dir / "before")
        newer.rename(run_dir / "checkpoints")
    return called(*arguments)

setattr(module, name, replaced)
export.export(run_dir)
"""
# Two matrices, of 1 and 2 million numbers, of which SGD keeps one state; and vectors, half a million, for AdamW.
MODEL = """

def build_model(config):
    matrices = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 2000, bias=False))
    return nn.Sequential(matrices, *(nn.LayerNorm(2500) for _ in range(100)))


def modules_to_shard(model):
    return [model[0], model[0][1]]
"""
OPTIMIZERS = """

def build_optimizer(model, config):
    from .runtime import Optimizers
    return Optimizers(torch.optim.SGD(model[0].parameters(), momentum=0.9), AdamW(model[1:].parameters()))
"""


@pytest.fixture(scope="module")
def sharded(project: Render, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a project and the run directory of a run on two ranks."""
    run_dir = tmp_path_factory.mktemp("sharded") / "run"
    train_on_ranks(project(parallel="fsdp"), run_dir, "--max-steps", "3", "--ema-decay", "0.5")
    return project(parallel="fsdp"), run_dir


def averaged(run_dir: Path) -> dict[str, Any]:
    best = whole_checkpoint(run_dir, "best.pt")
    return {**best["model"], **best["update"]["average"]}


def begun(project: Path, run_dir: Path, source: Path) -> dict[str, Any]:
    """Return the weights of a run that begins with others, and learns nothing."""
    train_on_ranks(project, run_dir, "--max-steps", "1", "--lr", "0", "--weight-decay", "0", "--init-from", str(source))
    weights = whole_checkpoint(run_dir)["model"]
    return {name: weights[name] for name in weights if "running" not in name and "num_batches" not in name}


@pytest.mark.parametrize("size", [1 << 30, 5000])
def test_an_export_is_the_best_checkpoint_in_one_file_or_several(
    size: int, sharded: tuple[Path, Path], project: Render, tmp_path: Path
) -> None:
    """A project with DistributedDataParallel, and one with shards, begin with it."""
    place, run_dir = sharded
    output_of_fork(EXPORT, run_dir, str(size), project=place)
    files = {each.name for each in (run_dir / "export").glob("*.safetensors")}
    assert (len(files) > 1) == (size == 5000)
    if len(files) > 1:
        index = json.loads((run_dir / "export" / "model.safetensors.index.json").read_text())
        assert {*index["weight_map"].values()} == files
        assert {*index["weight_map"]} == {*averaged(run_dir)}
    output_of_fork(LOAD, run_dir / "export", tmp_path / "loaded.pt", project=place)
    assert differences(dict(torch.load(tmp_path / "loaded.pt")), averaged(run_dir)) == []
    for name, other in {"replicas": project(), "shards": place}.items():
        for found, weight in begun(other, tmp_path / name, run_dir / "export").items():
            assert torch.equal(weight, averaged(run_dir)[found]), found


def test_a_run_begins_with_the_checkpoint_of_a_sharded_one(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    place, run_dir = sharded
    for name, weight in begun(place, tmp_path / "run", run_dir).items():
        assert torch.equal(weight, averaged(run_dir)[name]), name


@pytest.mark.parametrize("wrong", ["missing", "damaged"])
def test_a_run_does_not_begin_with_shards_that_are_not_whole(
    wrong: str, sharded: tuple[Path, Path], tmp_path: Path
) -> None:
    place, run_dir = sharded
    copied = shutil.copytree(run_dir, tmp_path / "copied")
    [shard, *_] = sorted(copied.glob("checkpoints/step-00000003/shard-00001-*"))
    if wrong == "missing":
        shard.unlink()
    else:
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    printed = train_on_ranks(place, tmp_path / "run", "--init-from", str(copied), code=2)
    assert error_in(printed).startswith(f"error: rank 0: {shard} is {wrong}")


def test_shards_are_found_by_a_link_and_beside_what_a_system_leaves(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    place, run_dir = sharded
    copied = shutil.copytree(run_dir, tmp_path / "copied")
    for folder in copied.glob("checkpoints/step-*/"):
        (folder / "._shard-00001-model-00001-of-00001.safetensors").write_text("of macOS")
    link = tmp_path / "link.pt"
    link.symlink_to(copied / "checkpoints" / "best.pt")
    for name, weight in begun(place, tmp_path / "begun", link).items():
        assert torch.equal(weight, averaged(run_dir)[name]), name
    train_on_ranks(place, tmp_path / "resumed", "--max-steps", "4", "--ema-decay", "0.5", "--resume", str(link))
    assert checkpoint(tmp_path / "resumed")["progress"]["step"] == 4


def test_an_export_that_fails_leaves_the_one_before(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    place, run_dir = sharded
    copied = shutil.copytree(run_dir, tmp_path / "copied")
    output_of_fork(EXPORT, copied, str(1 << 30), project=place)
    failing = "import errno; from ddp_project.runtime import export\n"
    failing += "def full(*_): raise OSError(errno.ENOSPC, 'full')\n"
    failing += f"export.write_safetensors = full; export.export(__import__('pathlib').Path({str(copied)!r}))"
    output_of_fork(failing, project=place, code=1)
    output_of_fork(LOAD, copied / "export", tmp_path / "loaded.pt", project=place)
    assert differences(dict(torch.load(tmp_path / "loaded.pt")), averaged(run_dir)) == []


def test_an_export_begins_again_if_its_checkpoint_is_replaced(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    """By a run that trains on, and deletes the shards, before they are checked or while they are copied."""
    place, run_dir = sharded
    train_on_ranks(place, tmp_path / "newer", "--max-steps", "1", "--seed", "1")
    for name in ("check_shards", "read_whole_tensors"):
        copied = shutil.copytree(run_dir / "checkpoints", tmp_path / name / "checkpoints").parent
        newer = shutil.copytree(tmp_path / "newer" / "checkpoints", tmp_path / name / "newer")
        output_of_fork(REPLACED, copied, newer, name, project=place)
        assert json.loads((copied / "export" / "model.json").read_text())["step"] == 1
        output_of_fork(LOAD, copied / "export", tmp_path / "loaded.pt", project=place)
        expected = whole_checkpoint(tmp_path / "newer", "best.pt")["model"]
        assert differences(dict(torch.load(tmp_path / "loaded.pt")), expected) == []


def test_a_run_with_shards_does_not_resume_one_of_whole_weights(
    sharded: tuple[Path, Path], project: Render, tmp_path: Path
) -> None:
    train_on_ranks(project(), tmp_path / "run", "--max-steps", "1")
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    printed = train_on_ranks(sharded[0], tmp_path / "other", "--resume", str(last), code=2)
    assert f"{last} has whole weights, and no shards: begin a new run with --init-from {last}" in error_in(printed)


def test_evaluate_finds_on_other_numbers_of_ranks_what_the_run_found(sharded: tuple[Path, Path]) -> None:
    place, run_dir = sharded
    best = checkpoint(run_dir, "best.pt")["progress"]["best_metrics"]
    for ranks in (1, 3):
        printed = output_of_fork("evaluate.py", run_dir, "--device", "cpu", project=place, processes=ranks)
        found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        assert found["loss"] == pytest.approx(best["loss"], rel=1e-5)


def estimated(project: Path, *options: str) -> tuple[float, float, str]:
    """Return what 4 ranks need with replicas and with shards (GiB), and all that is said."""
    told = output_of_fork("train.py", "--estimate", "--layers", "12", *options, project=project)
    (four,) = (line.split() for line in told.splitlines() if line.split()[:1] == ["4"])
    return float(four[1]), float(four[3]), told


def test_the_estimate_counts_what_a_rank_keeps_and_gathers(project: Render) -> None:
    place = project(parallel="fsdp", task="language")
    replicas, shards, told = estimated(place)
    assert "without activations: 4 times the weights" in told, "AdamW keeps two moments beside the gradient"
    assert "the largest of 12 blocks" in told
    assert shards < replicas / 2
    weights = replicas / 4
    of_options = {
        "--no-reshard": shards + weights,
        "--accum-steps 2": shards + weights,
        "--accum-steps 2 --reduce-each": shards,
        "--no-reshard --bf16-weights --precision bf16": replicas / 4 + weights / 2,
        "--cpu-offload": shards - replicas / 4,
    }
    for options, expected in of_options.items():
        assert estimated(place, *options.split())[1] == pytest.approx(expected, rel=0.25), options


def test_the_estimate_of_a_model_that_trains_little(own_project: Render) -> None:
    project = own_project(parallel="fsdp", task="language")
    model = project / "ddp_project" / "model.py"
    frozen = "    model = GPT(config).requires_grad_(False)\n    model.norm.requires_grad_(True)\n    return model\n"
    model.write_text(model.read_text().replace("    return GPT(config)\n", frozen))
    assert "without activations: 1 times the weights" in estimated(project)[2]
    wrong = output_of_fork("train.py", "--estimate", "--width", "97", project=project, code=2)
    assert wrong == "error: --width 97 is no multiple of --heads 4\n"


def test_the_estimate_counts_states_by_sizes_and_nested_blocks_once(own_project: Render) -> None:
    project = own_project(parallel="fsdp", task="language")
    extend(project / "ddp_project" / "model.py", MODEL)
    extend(project / "ddp_project" / "task.py", OPTIMIZERS)
    told = estimated(project)[2]
    states = (3 + 2 * 0.5) / 3.5
    assert f"without activations: {2 + states:.3g} times the weights" in told
    inner, outside = (4 * numbers / 2**30 for numbers in (2_000_000, 500_000))
    assert f"the largest of 2 blocks: {inner:.3g} GiB; outside of blocks: {outside:.3g} GiB" in told


def test_a_full_disk_keeps_no_part_of_a_checkpoint(project: Render, tmp_path: Path) -> None:
    with small_disk(tmp_path / "run", "3m") as run_dir:
        options = ("--save-every", "1", "--keep", "99")
        error = error_in(train_on_ranks(project(parallel="fsdp"), run_dir, *options, code=2, timeout=100))
        assert re.search(r"step-\d+ could not be written \(it takes \d+ bytes\): OSError .*No space left", error), error
        named = {checkpoint(run_dir, each.name)["shards"]["folder"] for each in run_dir.glob("checkpoints/*.pt")}
        assert {each.name for each in run_dir.glob("checkpoints/step-*/")} == named
