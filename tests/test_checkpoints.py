"""Checkpoints hold all that a run needs, outlast kills and full disks, and a resumed run ends as a whole one does."""

import json
import multiprocessing
import os
import random
import re
import resource
import runpy
import shutil
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import Render
from .disks import small_disk
from .launching import ON_CPU, checkpoint, differences, module_of, train

PLAIN_TYPES = {str, int, float, bool, type(None), list, tuple, dict, OrderedDict, torch.Tensor}
STEPS, BATCH, STEPS_IN_EPOCH = 50, 64, 22


# Importing torch takes 20 times as long as the few steps of these tests: one process imports it and forks each rank.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.nn.functional", "tqdm", "tyro"])


Entry = Callable[[], None]


@dataclass
class Rank:
    """A rank that was started, and the file that takes what it prints."""

    process: BaseProcess
    output: Path

    def kill(self) -> None:
        """Send KILL, and return when it is gone."""
        self.process.kill()
        self.process.join()

    def ends_with(self, code: int, timeout: float) -> str:
        """Wait until it ends, and give what it printed. Fails where the exit code is another, or None: a timeout."""
        self.process.join(timeout)
        printed = self.output.read_text()
        assert self.process.exitcode == code, f"exit code {self.process.exitcode}:\n{printed}"
        return printed


def own_run_dir(run_dir: Path, rank: int) -> Path:
    """The run directory that a rank is told: each has its own, to show that none but rank 0 uses it."""
    return run_dir if rank == 0 else run_dir.with_name(f"{run_dir.name}-of-rank-{rank}")


def run_train() -> None:
    """What a rank does by default."""
    runpy.run_path("train.py", run_name="__main__")


def run_rank(entry: Entry, project: Path, options: list[str], env: dict[str, str], output: Path, limit: int) -> None:
    """Be a rank: take the environment, the folder, the command line and the output that a shell would give it."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(project)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["train.py", *options]
    sys.path.insert(0, str(project))
    entry()


def start_ranks(
    project: Path,
    run_dir: Path,
    *options: str,
    processes: int = 2,
    env: Mapping[str, str] | None = None,
    largest_file: int = resource.RLIM_INFINITY,
    entry: Entry = run_train,
) -> list[Rank]:
    """Start train.py, or another entry, on each rank: with the variables that torchrun sets, but in reach of the test.

    What rank 0 prints is in a file beside the run directory, RUN-rank-0.out.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    size = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for number in range(processes):
        command = [*ON_CPU, "--run-dir", str(own_run_dir(run_dir, number)), *options]
        variables = {**os.environ, **size, **place, "RANK": str(number), "LOCAL_RANK": str(number), **(env or {})}
        output = run_dir.with_name(f"{run_dir.name}-rank-{number}.out")
        output.unlink(missing_ok=True)
        process = FORKING.Process(target=run_rank, args=(entry, project, command, variables, output, largest_file))
        process.start()
        ranks.append(Rank(process, output))
    return ranks


def train_on_ranks(
    project: Path,
    run_dir: Path,
    *options: str,
    processes: int = 2,
    code: int = 0,
    env: Mapping[str, str] | None = None,
    largest_file: int = resource.RLIM_INFINITY,
    timeout: float = 120,
    entry: Entry = run_train,
) -> list[str]:
    """Train and give what each rank printed. Fails where a rank ends with another code, or where not rank 0 writes."""
    ranks = start_ranks(
        project, run_dir, *options, processes=processes, env=env, largest_file=largest_file, entry=entry
    )
    try:
        printed = [rank.ends_with(code, timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number in range(1, processes):
        assert not own_run_dir(run_dir, number).exists(), f"rank {number} wrote files"
    return printed


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare all that decides how two runs go on, bit for bit."""
    for part in ("model", "optimizer", "ranks", "progress"):
        assert differences(one[part], other[part]) == [], part


def types_within(value: Any) -> Iterator[type]:
    """The types of a nested value and of all that it holds."""
    yield type(value)
    if isinstance(value, dict):
        for key, held in value.items():
            yield from types_within(key)
            yield from types_within(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from types_within(held)


def names(run_dir: Path) -> list[str]:
    """The files in the folder of the checkpoints, but for their manifest."""
    return sorted(file.name for file in (run_dir / "checkpoints").iterdir() if file.name != "manifest.json")


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


def test_a_checkpoint_loads_into_the_plain_network_and_gives_the_logged_accuracy(project: Render, whole: Path) -> None:
    package = project() / "ddp_project"
    network = module_of(package / "model.py").build_model()
    network.load_state_dict(checkpoint(whole)["model"], strict=True)
    _, validation = module_of(package / "data.py").load_data()
    network.eval()
    with torch.inference_mode():
        correct = (network(validation.images).argmax(dim=1) == validation.labels).sum().item()
    expected = logged(whole, "epoch/validation_accuracy")[STEPS]
    assert correct / len(validation) == pytest.approx(expected, abs=1e-4)


def test_a_checkpoint_holds_plain_types_alone(whole: Path) -> None:
    for name in names(whole):
        assert set(types_within(checkpoint(whole, name))) <= PLAIN_TYPES, name


def test_a_checkpoint_holds_all_that_a_run_needs(whole: Path) -> None:
    saved = checkpoint(whole)
    assert saved.keys() == {"model", "optimizer", "progress", "config", "ranks"}
    assert saved["config"] == json.loads((whole / "config.json").read_text())
    assert saved["config"]["max_steps"] == STEPS
    progress = saved["progress"]
    counted = {key: progress[key] for key in ("step", "epoch", "samples_in_epoch", "samples_seen")}
    in_epoch = (STEPS - 2 * STEPS_IN_EPOCH) * BATCH
    assert counted == {"step": STEPS, "epoch": 2, "samples_in_epoch": in_epoch, "samples_seen": STEPS * BATCH}
    moments = saved["optimizer"]["state"]
    assert {len(state) for state in moments.values()} == {3}
    assert all(state["step"] == STEPS for state in moments.values())


def test_each_rank_has_its_own_state_and_the_model_the_mean_of_their_statistics(whole: Path) -> None:
    saved = checkpoint(whole)
    first, second = saved["ranks"]
    assert not torch.equal(first["generators"]["torch"], second["generators"]["torch"])
    statistics = [key for key in saved["model"] if key.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 4
    for key in statistics:
        assert not torch.equal(first["buffers"][key], second["buffers"][key]), key
        mean = (first["buffers"][key].double() + second["buffers"][key].double()) / 2
        torch.testing.assert_close(saved["model"][key].double(), mean, rtol=1e-6, atol=1e-9)


def test_a_run_resumed_from_its_newest_checkpoint_ends_the_same(whole: Path, stopped: Path) -> None:
    assert_same_state(checkpoint(stopped), checkpoint(whole))


def test_a_run_resumed_by_path_in_another_run_directory_ends_the_same(
    project: Render, whole: Path, tmp_path: Path
) -> None:
    before = names(whole)
    source = whole / "checkpoints" / "step-00000026.pt"
    train_on_ranks(project(), tmp_path / "other", "--resume", str(source), "--max-steps", str(STEPS))
    assert_same_state(checkpoint(tmp_path / "other"), checkpoint(whole))
    assert names(tmp_path / "other") == ["best.pt", "last.pt", "step-00000044.pt", "step-00000050.pt"]
    assert names(whole) == before


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
    assert best["best_accuracy"] == last["best_accuracy"] == pytest.approx(accuracies[best["step"]], abs=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_has_the_same_keys_and_goes_on_uncompiled(project: Render, whole: Path, tmp_path: Path) -> None:
    source = str(whole / "checkpoints" / "step-00000013.pt")
    run_dir = tmp_path / "run"
    train(project(), run_dir, "--resume", source, "--max-steps", "15", "--compile", launcher="alone")
    saved = checkpoint(run_dir)
    assert saved["config"]["compile"] is True
    assert saved["model"].keys() == checkpoint(whole)["model"].keys()
    train_on_ranks(project(), run_dir, "--resume", "--max-steps", "17", processes=1)
    assert checkpoint(run_dir)["progress"]["step"] == 17


def newest_step(run_dir: Path) -> int:
    """The step of the newest numbered checkpoint; 0 where there is none."""
    return max((int(file.stem[5:]) for file in (run_dir / "checkpoints").glob("step-*.pt")), default=0)


def kill_after(ranks: list[Rank], run_dir: Path, step: int, delay: float) -> bool:
    """Kill all ranks at once, some time after a step was saved. Gives False where they ended before."""
    while newest_step(run_dir) < step and all(rank.process.is_alive() for rank in ranks):
        time.sleep(0.001)
    time.sleep(delay)
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.join()
    codes = {rank.process.exitcode for rank in ranks}
    assert codes <= {0, -signal.SIGKILL}, ranks[0].output.read_text()
    return codes == {-signal.SIGKILL}


def test_a_killed_run_leaves_whole_checkpoints_and_goes_on(project: Render, whole: Path, tmp_path: Path) -> None:
    run_dir, moments = tmp_path / "run", random.Random(1)
    options = ("--save-every", "1", "--keep", "2", "--max-steps", str(STEPS))
    step = kills = 0
    while step < STEPS - 10 and kills < 10:
        ranks = start_ranks(project(), run_dir, *(["--resume"] if step else []), *options)
        seen = step + moments.randint(1, 3)
        kills += kill_after(ranks, run_dir, seen, delay=moments.uniform(0, 0.03))
        left = {name: checkpoint(run_dir, name)["progress"]["step"] for name in names(run_dir) if name.endswith(".pt")}
        step = left["last.pt"]
        assert step >= seen - 1, "more than one interval is lost"
    assert kills >= 3
    train_on_ranks(project(), run_dir, "--resume", *options)
    assert_same_state(checkpoint(run_dir), checkpoint(whole))
    assert names(run_dir) == ["best.pt", "last.pt", "step-00000049.pt", "step-00000050.pt"]


def assert_one_line_names(printed: list[str], path: str, reason: str) -> None:
    """Rank 0 says with one line of error what could not be written and why, and nobody says anything else of it."""
    errors = [line for line in "\n".join(printed).splitlines() if " INFO " not in line and line]
    assert len(errors) == 1, errors
    assert re.fullmatch(rf"error: .*{path} could not be written: .*{reason}.*", errors[0]), errors[0]


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_full_disk_ends_all_ranks_with_one_line_and_leaves_what_was_saved(project: Render, tmp_path: Path) -> None:
    with small_disk(tmp_path / "run", "2m") as run_dir:
        printed = train_on_ranks(project(), run_dir, "--save-every", "1", "--keep", "99", code=2, timeout=100)
        saved = names(run_dir)
        written = len(saved) - 1
        assert written >= 2
        assert saved == ["last.pt", *(f"step-{step:08d}.pt" for step in range(1, written + 1))]
        assert [checkpoint(run_dir, name)["progress"]["step"] for name in saved] == [written, *range(1, written + 1)]
        assert_one_line_names(printed, rf"step-{written + 1:08d}\.pt", "No space left on device")


def test_a_file_that_grows_too_large_leaves_the_run_as_it_was(project: Render, stopped: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    before = {name: (run_dir / "checkpoints" / name).read_bytes() for name in names(run_dir)}
    options = ("--resume", "--save-every", "1", "--keep", "2")
    printed = train_on_ranks(project(), run_dir, *options, code=2, largest_file=100_000, timeout=100)
    assert {name: (run_dir / "checkpoints" / name).read_bytes() for name in names(run_dir)} == before
    assert_one_line_names(printed, r"step-00000051\.pt", "File too large")
