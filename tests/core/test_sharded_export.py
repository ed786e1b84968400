"""What a sharded run has trained leaves it: exports of one file or several, evaluations, runs that begin with it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.ranks import train_on_ranks
from tests.support.training import checkpoint, differences, whole_checkpoint

EXPORT = "import sys, pathlib; from ddp_project.runtime import export; export.FILE = int(sys.argv[2]); "
EXPORT += "export.export(pathlib.Path(sys.argv[1]))"
LOAD = "import sys, torch; from ddp_project.runtime import load_model; "
LOAD += "torch.save(load_model(sys.argv[1]).state_dict(), sys.argv[2])"


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
    output_of([sys.executable, "-c", EXPORT, str(run_dir), str(size)], place)
    files = {each.name for each in (run_dir / "export").glob("*.safetensors")}
    assert (len(files) > 1) == (size == 5000)
    if len(files) > 1:
        index = json.loads((run_dir / "export" / "model.safetensors.index.json").read_text())
        assert {*index["weight_map"].values()} == files
        assert {*index["weight_map"]} == {*averaged(run_dir)}
    output_of([sys.executable, "-c", LOAD, str(run_dir / "export"), str(tmp_path / "loaded.pt")], place)
    assert differences(dict(torch.load(tmp_path / "loaded.pt")), averaged(run_dir)) == []
    for name, other in {"replicas": project(), "shards": place}.items():
        for found, weight in begun(other, tmp_path / name, run_dir / "export").items():
            assert torch.equal(weight, averaged(run_dir)[found]), found


def test_a_run_begins_with_the_checkpoint_of_a_sharded_one(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    place, run_dir = sharded
    for name, weight in begun(place, tmp_path / "run", run_dir).items():
        assert torch.equal(weight, averaged(run_dir)[name]), name


def test_evaluate_finds_on_other_numbers_of_ranks_what_the_run_found(sharded: tuple[Path, Path]) -> None:
    place, run_dir = sharded
    best = checkpoint(run_dir, "best.pt")["progress"]["best_metrics"]
    for ranks in (1, 3):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        found = json.loads(
            output_of([*command, "evaluate.py", str(run_dir), "--device", "cpu"], place).splitlines()[-1]
        )
        assert found["loss"] == pytest.approx(best["loss"], rel=1e-5)


def test_the_estimate_counts_the_weights_and_what_the_optimizer_keeps(project: Render) -> None:
    command = [sys.executable, "train.py", "--estimate", "--layers", "12"]
    told = output_of(command, project(parallel="fsdp", task="language"))
    assert "without activations: 4 times the weights" in told, "AdamW keeps two moments beside the gradient"
    assert "the largest of 12 blocks" in told
    (four,) = (line.split() for line in told.splitlines() if line.split()[:1] == ["4"])
    assert float(four[3]) < float(four[1]) / 2
