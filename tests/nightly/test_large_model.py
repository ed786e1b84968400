"""A GPT whose weights and moments dominate its memory: with shards it needs little, is killed, resumes and predicts."""

import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Measured, Render
from tests.core.faults.test_sharded_kills import assert_all_are_whole, kill_while_writing
from tests.support.processes import output_of
from tests.support.ranks import kill_after, run_train, start_ranks, train_on_ranks
from tests.support.training import whole_checkpoint

RANKS = 4
# 38 million parameters: 145 MiB of weights, and with gradients and moments 580 MiB.
LARGE = ("--layers", "12", "--width", "512", "--heads", "8")
SHORT = ("--context", "16", "--global-batch-size", "4", "--epochs", "1", "--eval-every", "1000")
PEAKS = "PEAKS"  # a variable: the folder to which ranks write how much memory they took
AT_MOST = 0.4  # of what a rank with DistributedDataParallel takes


def train_and_tell_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the process that forked this one
    try:
        run_train()
    finally:
        [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        Path(os.environ[PEAKS], os.environ["RANK"]).write_text(peak)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text"
    file.write_text("To be, or not to be, that is the question.\n" * 100)
    return file


def peak_of(project: Path, place: Path, *options: str) -> float:
    """Return the most that one of four ranks took in a run with two saves (MiB)."""
    place.mkdir()
    how: Any = {"processes": RANKS, "entry": train_and_tell_peak, "env": {PEAKS: str(place)}, "timeout": 600}
    train_on_ranks(project, place / "run", *options, "--max-steps", "4", "--save-every", "2", **how)
    found = max(int((place / str(rank)).read_text()) for rank in range(RANKS)) / 1024
    shutil.rmtree(place)  # gigabytes
    return found


def test_a_rank_with_shards_takes_little_of_what_replicas_take(
    text: Path, project: Render, tmp_path: Path, measured: Measured
) -> None:
    """Compared with a rank that trains hardly anything, and has Python and torch in its memory."""
    peaks = {}
    for parallel in ("ddp", "fsdp"):
        place, options = project(task="language", parallel=parallel), ("--data", str(text), *SHORT)
        idle = peak_of(place, tmp_path / f"{parallel}-idle", *options, "--layers", "1", "--width", "8", "--heads", "1")
        peaks[parallel] = peak_of(place, tmp_path / parallel, *options, *LARGE) - idle
        measured("memory", f"{parallel}: MiB of a rank above an idle one", round(peaks[parallel]))
    assert peaks["fsdp"] <= AT_MOST * peaks["ddp"]


def test_it_is_killed_and_resumes_on_two_ranks_and_exports_and_predicts(
    text: Path, project: Render, tmp_path: Path
) -> None:
    place, run_dir = project(task="language", parallel="fsdp"), tmp_path / "run"
    options = ("--data", str(text), *LARGE, *SHORT, "--save-every", "2", "--keep", "2")
    start = partial(start_ranks, place, run_dir, *options, processes=RANKS)
    assert kill_after(start("--max-steps", "100"), run_dir, 2, delay=0.0)
    assert kill_while_writing(start("--max-steps", "100", "--resume"), run_dir, delay=0.2)
    reached = assert_all_are_whole(run_dir)
    train_on_ranks(place, run_dir, *options, "--max-steps", str(reached + 2), "--resume", timeout=600)
    assert whole_checkpoint(run_dir)["progress"]["step"] == reached + 2
    output_of([sys.executable, "export.py", str(run_dir)], place, timeout=600)
    predicted = output_of([sys.executable, "predict.py", str(run_dir / "export"), str(text), "--device", "cpu"], place)
    assert '"continuation": ' in predicted
