"""Ranks that are killed at any moment lose one interval between two checkpoints at most, and never a checkpoint."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

from generator.chaos.nemesis import temporary_files
from tests.conftest import Measured, Render
from tests.support.processes import wait_until
from tests.support.ranks import Rank, any_ended, assert_same_state, kill_after, names, start_ranks, train_on_ranks
from tests.support.training import checkpoint

KillInASave = Callable[[list[Rank], Path, float], bool]
Whole = Callable[[Path], int]
LATER = 10  # steps that the last start, which nobody kills, still has to take


def kill_while_saving(ranks: list[Rank], run_dir: Path, delay: float) -> bool:
    """Kill all ranks some time after a checkpoint has begun to be written. Returns False if they ended before."""
    before = temporary_files(run_dir)  # left by the kill before
    wait_until(lambda: any_ended(ranks) or not temporary_files(run_dir) <= before, pause=0)
    return kill_after(ranks, run_dir, 0, delay)


def assert_all_are_whole(run_dir: Path) -> int:
    """Load every checkpoint, compare its bytes with the manifest, and return the step of last.pt."""
    folder = run_dir / "checkpoints"
    known = json.loads((folder / "manifest.json").read_text())
    for file in [folder / name for name in names(run_dir) if name.endswith(".pt")]:
        content = file.read_bytes()
        entry = known[hashlib.sha256(content).hexdigest()]
        step = checkpoint(run_dir, file.name)["progress"]["step"]
        assert (entry["size"], entry["step"], entry["world_size"]) == (len(content), step, 2), file.name
    last: int = checkpoint(run_dir)["progress"]["step"]
    numbered = sorted(entry["step"] for entry in known.values() if (folder / entry["file"]).exists())
    assert last in numbered[-2:], "a kill may come when the newest has its number, and is not yet last.pt, too"
    return last


def test_a_killed_run_loses_one_interval_at_most(project: Render, tmp_path: Path, measured: Measured) -> None:
    assert_kills_lose_one_interval(6, project(), tmp_path, measured)


def assert_kills_lose_one_interval(kills: int, project: Path, folder: Path, measured: Measured, *further: str) -> None:
    run_dir = folder / "run"
    in_a_save = kill_while_saving, 0.004, assert_all_are_whole
    while_saving, lost = kill_again_and_again(kills, project, folder, in_a_save, *further)
    assert_same_state(checkpoint(run_dir), checkpoint(folder / "whole"))
    assert [name for name in names(run_dir) if name.endswith(".tmp")] == []
    how = " ".join([f"{kills} kills", *further])
    measured("kills", f"{how}, {while_saving} of them while saving: damaged checkpoints", 0)
    measured("kills", f"{how}: intervals lost at most", lost)


def kill_again_and_again(
    kills: int, project: Path, folder: Path, in_a_save: tuple[KillInASave, float, Whole], *further: str
) -> tuple[int, int]:
    """Kill a run many times, half of them in a save, then train it and one that nobody kills to the end.

    `in_a_save` has what kills it in a save, its longest delay (seconds), and what looks at the checkpoints.
    Returns how many kills were in a save, and how many intervals were lost at most.
    """
    kill_in_a_save, longest, look = in_a_save
    run_dir, moments = folder / "run", random.Random(kills)
    options = ("--save-every", "1", "--keep", "2", "--epochs", "60", "--max-steps", str(4 * kills + LATER), *further)
    step, killed, while_saving, lost = 0, 0, 0, 0
    for number in range(kills):
        ranks = start_ranks(project, run_dir, *(["--resume"] if step else []), *options)
        seen = step + moments.randint(1, 3)
        if number % 2 and step:
            while_saving += kill_in_a_save(ranks, run_dir, moments.uniform(0, longest))
            seen = step
        else:
            killed += kill_after(ranks, run_dir, seen, delay=moments.uniform(0, 0.03))
        before, step = step, look(run_dir)
        lost = max(lost, seen - step)
        assert step >= max(before, seen - 1), "more than one interval is lost"
    assert killed + while_saving == kills
    assert f"resumed from {run_dir / 'checkpoints' / 'last.pt'}" in (run_dir / "train.log").read_text()
    train_on_ranks(project, run_dir, "--resume", *options)
    train_on_ranks(project, folder / "whole", *options)
    return while_saving, lost
