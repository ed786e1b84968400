"""What the training loop costs: its collectives, and threads that could hold each other up."""

import os
from pathlib import Path

from tests.conftest import Render
from tests.loop_ranks import collectives_of_an_epoch, on_two_ranks
from tests.nightly.test_signals import ranks_of, running


def test_one_reduction_a_step_and_one_a_report(project: Render, tmp_path: Path) -> None:
    # 1,437 samples in micro-batches of 16 are 89, in windows of 3 are 30 steps; reports after 7, 14, 21, 28 and 30.
    chosen = {"run_dir": tmp_path / "run", "global_batch_size": 48, "accum_steps": 3, "log_every": 7}
    for counted in on_two_ranks(collectives_of_an_epoch, tmp_path, project(), chosen):
        # The two broadcasts come once, after the first step: DDP agrees on the order of its buckets.
        assert counted == {"gloo:all_reduce": 30 + 5, "gloo:broadcast": 2}


def test_no_thread_of_gloo_interrupts_another(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="torchrun"), run_dir, "torchrun"):
        for rank in ranks_of(run_dir):
            tasks = [*Path(f"/proc/{rank}/task").iterdir()]
            gloo = [task for task in tasks if "gloo" in (task / "comm").read_text()]
            assert gloo
            assert {os.sched_getscheduler(int(task.name)) for task in gloo} == {os.SCHED_BATCH}
