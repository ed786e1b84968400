"""Checkpoints hold all that a run needs, outlast kills and full disks, and a resumed run ends as a whole one does."""

import json
import random
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks.simulated import one_of, progress_of
from tests.conftest import Package, Render
from tests.support.ranks import assert_same_state, names, train_on_ranks
from tests.support.training import HAS_GPU, checkpoint, module_of

STEPS, BATCH, STEPS_IN_EPOCH = 50, 64, 22


def logged(run_dir: Path, metric: str) -> dict[int, float]:
    """The values of a metric that the log of a run tells, by step."""
    pattern = re.compile(rf" step (\d+) .* {re.escape(metric)} (\S+)")
    return {int(step): float(value) for step, value in pattern.findall((run_dir / "train.log").read_text())}


@pytest.fixture(scope="module")
def whole(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run that nothing stopped: two epochs of 22 steps, and a part of the third."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", str(STEPS), "--save-every", "13", "--keep", "9")
    return run_dir


@pytest.fixture(scope="module")
def stopped(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run that was stopped in the middle of an epoch and went on from its newest checkpoint."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "13")
    options = ("--max-steps", str(STEPS), "--save-every", "4", "--keep", "2")
    train_on_ranks(project(), run_dir, "--resume", *options)
    return run_dir


def test_an_export_is_as_accurate_as_logged(package: Package, project: Render, whole: Path, tmp_path: Path) -> None:
    """On every digit but the first 1,437 of an order, by an independent reading of the file."""
    export = package("runtime.export")
    network = export.load_model(export.export(whole / "checkpoints" / "last.pt", tmp_path / "export"))
    digits = np.load(project() / "ddp_project" / "digits.npz")
    chosen = torch.randperm(1797, generator=torch.Generator().manual_seed(0))[1437:]
    with torch.inference_mode():
        answers = network(torch.tensor(digits["images"])[chosen][:, None] / 16).argmax(dim=1)
    accuracy = (answers == torch.tensor(digits["labels"])[chosen]).double().mean().item()
    assert accuracy == pytest.approx(logged(whole, "epoch/validation_accuracy")[STEPS], abs=1e-4)


def test_a_checkpoint_holds_all_that_a_run_needs(whole: Path) -> None:
    saved = checkpoint(whole)
    parts = {"model", "scaler", "optimizer", "update", "progress"}
    assert saved.keys() == {*parts, "config", "code", "ranks", "world_size"}
    assert saved["config"] == json.loads((whole / "config.json").read_text())
    assert saved["config"]["max_steps"] == STEPS
    progress = saved["progress"]
    counted = {key: progress[key] for key in ("step", "epoch", "samples_in_epoch", "samples_seen")}
    in_epoch = (STEPS - 2 * STEPS_IN_EPOCH) * BATCH
    assert counted == {"step": STEPS, "epoch": 2, "samples_in_epoch": in_epoch, "samples_seen": STEPS * BATCH}
    moments = saved["optimizer"]["state"]
    assert {len(state) for state in moments.values()} == {3}
    assert all(state["step"] == STEPS for state in moments.values())
    for kind in ("python", "numpy", "torch"):
        first, second = saved["ranks"]["generators"][kind]
        assert not torch.equal(first, second), "each rank has its own"


def draws() -> list[float]:
    """Numbers of all generators: of each one a normally distributed one, of which two are made at once, then others."""
    normal = [random.gauss(0, 1), np.random.standard_normal(), torch.randn(()).item()]
    return [*normal, *(random.random() for _ in range(700)), *np.random.random(700), *torch.rand(700).tolist()]


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_all_generators_go_on_where_they_were(drawn: int, project: Render) -> None:
    seeding = module_of(project() / "ddp_project" / "runtime" / "seeding.py")
    seeding.seed_generators(3)
    for _ in range(drawn):
        draws()
    states = seeding.generator_states(torch.device("cpu"))
    expected = draws()
    seeding.seed_generators(4)
    seeding.set_generator_states(states)
    assert draws() == expected


def test_a_run_resumed_in_another_run_directory_ends_the_same(project: Render, whole: Path, tmp_path: Path) -> None:
    before = names(whole)
    source = whole / "checkpoints" / "step-00000026.pt"
    train_on_ranks(project(), tmp_path / "other", "--resume", str(source), "--max-steps", str(STEPS))
    assert_same_state(checkpoint(tmp_path / "other"), checkpoint(whole))
    assert names(tmp_path / "other") == ["best.pt", "last.pt", "step-00000044.pt", "step-00000050.pt"]
    assert names(whole) == before


def test_two_runs_do_not_mix(project: Render, whole: Path, stopped: Path) -> None:
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    for options in ((), ("--resume", str(whole / "checkpoints" / "last.pt"))):
        printed = train_on_ranks(project(), stopped, *options, processes=1, code=2)
        assert f"error: {stopped} holds a run already: " in printed[0]
    assert {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()} == before


def test_a_run_that_begins_with_a_checkpoint_has_its_own_best(project: Render, stopped: Path, tmp_path: Path) -> None:
    saved = checkpoint(stopped)
    saved["progress"]["best"] = 2.0  # which no accuracy beats
    torch.save(saved, tmp_path / "start.pt")
    step = saved["progress"]["step"]
    options = ("--resume", str(tmp_path / "start.pt"), "--max-steps")
    train_on_ranks(project(), tmp_path / "run", *options, str(step + 1))
    assert checkpoint(tmp_path / "run", "best.pt")["progress"]["step"] == step + 1
    # Nothing is left to train, and nothing was evaluated.
    printed = train_on_ranks(project(), tmp_path / "other", *options, str(step))
    assert f"done: step {step}, no evaluation yet, in " in printed[0]
    assert "Traceback" not in printed[0]


def test_old_checkpoints_go_and_the_best_and_the_last_stay(project: Render, stopped: Path, tmp_path: Path) -> None:
    assert names(stopped) == ["best.pt", "last.pt", "step-00000048.pt", "step-00000050.pt"]
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    # This learning rate ruins the weights, so that the last checkpoint cannot be the best one.
    train_on_ranks(project(), run_dir, "--resume", "--lr", "10", "--max-steps", "66", "--keep", "1")
    assert names(run_dir) == ["best.pt", "last.pt", "step-00000066.pt"]
    accuracies = logged(run_dir, "epoch/validation_accuracy")
    assert sorted(accuracies) == [13, 22, 44, 50, 66]
    best, last = checkpoint(run_dir, "best.pt")["progress"], checkpoint(run_dir)["progress"]
    assert best["step"] == max(accuracies, key=lambda step: accuracies[step]) < last["step"] == 66
    assert best["best"] == last["best"] == pytest.approx(accuracies[best["step"]], abs=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_a_gpu_loads_without_a_copy_in_memory(whole: Path, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks of a machine would need it at once; a CPU needs it, else it would write to the file's memory."""
    module, config = package("runtime.checkpoint"), package("config").Config(run_dir=whole)
    monkeypatch.setattr(module.copy, "deepcopy", Mock(side_effect=AssertionError("copied")))
    for device, copied in {"cuda" if HAS_GPU else "meta": False, "cpu": True}.items():
        model = package("model").build_model(None).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints = module.Checkpoints(config, progress_of(package, config), model, optimizer=optimizer)
        with one_of(1), pytest.raises(AssertionError, match="copied") if copied else nullcontext():
            checkpoints._load(whole / "checkpoints" / "last.pt")
            assert {state["exp_avg"].device.type for state in optimizer.state.values()} == {device}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_copies_of_the_owner_stay(parallel: str, project: Render, tmp_path: Path) -> None:
    """Files and folders whose names begin as names of checkpoints do; --keep does not count them."""
    run_dir, options = tmp_path / "run", ("--save-every", "1", "--keep", "1", "--max-steps")
    train_on_ranks(project(parallel=parallel), run_dir, *options, "2")
    folder = run_dir / "checkpoints"
    shutil.copy(folder / "last.pt", folder / "step-00000002-mine.pt")
    (folder / "step-00000002-mine").mkdir()
    shutil.copy(folder / "last.pt", folder / "step-00000002-mine")
    train_on_ranks(project(parallel=parallel), run_dir, *options, "5", "--resume")
    assert (folder / "step-00000002-mine" / "last.pt").is_file()
    assert {*folder.glob("step-*.pt")} == {folder / "step-00000002-mine.pt", folder / "step-00000005.pt"}


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(package: Package, tmp_path: Path) -> None:
    """Other users may write to a shared folder."""
    victim, file = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    (tmp_path / "file.tmp").symlink_to(victim)
    package("runtime.storage").replace_file(file, b"new")
    assert (victim.read_text(), file.read_text(), file.is_symlink()) == ("mine", "new", False)
