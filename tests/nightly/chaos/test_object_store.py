"""A run in an object store, killed and cut off at any time, resumes on machines that have nothing of it."""

import shutil
import time
from pathlib import Path

from tests.conftest import Render
from tests.core.test_remote import OPTIONS, PARALLEL, URL, Wire, assert_ends_alike, newest_step, store, wire
from tests.support.processes import wait_until
from tests.support.ranks import any_ended, kill_all, start_ranks, train_on_ranks

__all__ = ["store", "wire"]


@PARALLEL
def test_killed_and_cut_anywhere_it_goes_on_from_a_whole_checkpoint(
    parallel: str, own_project: Render, wire: Wire, store: int, tmp_path: Path
) -> None:
    """Each time on a machine that has nothing of the run, over a slow network that is cut now and then."""
    project, steps = own_project(parallel=parallel), ("--max-steps", "100")
    train_on_ranks(project, tmp_path / "whole", *OPTIONS, *steps)
    wire.pause = 0.002

    def goes_on_and_is_killed(reached: int, delay: float, *, cut: bool) -> int:
        ranks = start_ranks(project, Path(URL), *OPTIONS, *steps, "--resume", "auto", outputs=tmp_path)
        wait_until(lambda: newest_step(store) > reached or any_ended(ranks), told=ranks[0].output.read_text)
        time.sleep(delay)  # seconds, into another copy
        wire.is_cut = cut
        kill_all(ranks)
        wire.is_cut = False
        shutil.rmtree(project / "runs")
        assert newest_step(store) > reached
        return newest_step(store)

    reached = 0
    for number in range(3):
        reached = goes_on_and_is_killed(reached, 0.03 * number, cut=number % 2 == 1)
    train_on_ranks(project, Path(URL), *OPTIONS, *steps, "--resume", "auto", outputs=tmp_path)
    assert_ends_alike(project, tmp_path / "whole")
    assert newest_step(store) == 100
