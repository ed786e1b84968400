"""A disk that takes no more ends all ranks with one line, and what was saved before stays as it was."""

import math
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.support import ranks
from tests.support.hardware import small_disk
from tests.support.processes import hang_timeout, scaled
from tests.support.ranks import lone_error_in, names, on_compute, project_module, run_train, train_on_ranks
from tests.support.training import HAS_GPU, ON_DEVICE, checkpoint

NEEDS_MOUNT = pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")


@NEEDS_MOUNT
@pytest.mark.parametrize("option", ["--no-async-saves", "--async-saves"])
def test_a_full_disk_leaves_what_was_saved(option: str, project: Render, tmp_path: Path) -> None:
    options = ("--save-every", "1", "--keep", "99", option)
    with small_disk(tmp_path / "run", "2m") as run_dir:
        printed = train_on_ranks(project(), run_dir, *options, code=2, timeout=100)
        saved = names(run_dir)
        written = len(saved) - 1
        assert written >= 2
        assert saved == ["last.pt", *(f"step-{step:08d}.pt" for step in range(1, written + 1))]
        assert [checkpoint(run_dir, name)["progress"]["step"] for name in saved] == [written, *range(1, written + 1)]
        size = (run_dir / "checkpoints" / "last.pt").stat().st_size
        error = lone_error_in(printed)
        path = rf"step-{written + 1:08d}\.pt"
        said = re.fullmatch(rf"error: .*{path} could not be written: No space .* \(it takes (\d+) bytes\)", error)
        assert said, error
        assert abs(int(said[1]) - size) < 1000, "not the size of a checkpoint"


def train_on_a_slow_disk() -> None:
    """What a rank does whose disk takes longer for records and checkpoint of a save than a collective waits."""
    pause, status = float(sys.argv[sys.argv.index("--timeout") + 1]) + 3, project_module("runtime.watchdog").STATUS
    pauses = [pause, pause]
    vars(os)["fsync"] = lambda descriptor: time.sleep(pauses.pop() if pauses and status.phase == "saving" else 0)
    try:
        run_train()
    finally:
        assert os.environ["RANK"] != "0" or not pauses


def train_while_saving() -> None:
    """What a rank does whose disk takes 5 steps for each file that it must have."""
    here = project_module("runtime.watchdog").STATUS

    def wait_for_steps(descriptor: int) -> None:
        until, patience = min(here.step + 5, 20), time.monotonic() + hang_timeout(30)
        while 0 < here.step < until:
            assert time.monotonic() < patience, "the loop waits for the disk"
            time.sleep(0.01)

    vars(os)["fsync"] = wait_for_steps
    run_train()


def test_training_goes_on_while_a_checkpoint_is_written(project: Render, tmp_path: Path) -> None:
    options = ("--max-steps", "20", "--save-every", "10", "--async-saves")
    train_on_ranks(project(), tmp_path / "run", *options, entry=train_while_saving)
    train_on_ranks(project(), tmp_path / "other", *options[:-1])
    for name in ("step-00000010.pt", "last.pt"):
        ranks.assert_same_state(checkpoint(tmp_path / "run", name), checkpoint(tmp_path / "other", name))


def fail_while_saving() -> None:
    """What a rank does whose task is wrong, as on all ranks, after the first save, while a slow disk still takes it."""
    file, here = project_module("runtime.storage").HashedFile, project_module("runtime.watchdog").STATUS
    write = file.write

    def write_slowly(file: Any, data: Any) -> int:
        time.sleep(2 if here.step else 0)
        return int(write(file, data))

    def fail(model: Any, batch: Any) -> None:
        if here.step == 2:
            raise project_module("runtime.exits").UserError("the task is wrong")

    file.write = write_slowly
    on_compute(fail)
    run_train()


def test_a_save_is_completed_after_an_error_of_all_ranks(project: Render, tmp_path: Path) -> None:
    options = ("--save-every", "2", "--async-saves")
    printed = train_on_ranks(project(), tmp_path / "run", *options, code=2, entry=fail_while_saving)
    assert "error: the task is wrong" in printed[0]
    assert names(tmp_path / "run") == ["last.pt", "step-00000002.pt"]
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 2


@pytest.mark.gpu
def test_a_save_may_take_longer_than_a_collective_waits(project: Render, tmp_path: Path) -> None:
    options = (*ON_DEVICE, "--max-steps", "2", "--timeout", str(math.ceil(scaled(5 if HAS_GPU else 2))))
    train_on_ranks(project(), tmp_path / "run", *options, entry=train_on_a_slow_disk)
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 2


@NEEDS_MOUNT
def test_a_disk_that_takes_no_metrics_ends_the_run_at_its_next_checkpoint(project: Render, tmp_path: Path) -> None:
    options = ("--max-steps", "60", "--eval-every", "3", "--log-every", "1")
    with small_disk(tmp_path / "run", "16k") as run_dir:  # a block for the options, the log, and twice the metrics
        printed = train_on_ranks(project(logging="csv"), run_dir, *options, code=2, timeout=100)
    told = [line for line in "\n".join(printed).splitlines() if line and " INFO " not in line]
    *lost, error = [re.sub(r".* rank 0 WARNING ", "", line) for line in told]
    files = [
        f"{run_dir}/{name} could not be written: No space left on device"
        for name in ("metrics.jsonl", "report.html", "result.json", "train.log")
    ]
    lost_rows = "metrics were not recorded: [Errno 28] No space left on device"
    assert lost_rows in lost
    assert sorted(line for line in lost if line != lost_rows) == files, "once each"
    assert re.fullmatch(r"error: .*step-00000060\.pt could not be written: No space left on device \(.*\)", error)
