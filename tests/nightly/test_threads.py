"""No thread of a rank interrupts another."""

import os
from pathlib import Path

from tests.conftest import Render
from tests.support.training import ranks_of, running


def test_no_thread_of_gloo_interrupts_another(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with running(project(launcher="torchrun"), run_dir, "torchrun"):
        for rank in ranks_of(run_dir):
            tasks = [*Path(f"/proc/{rank}/task").iterdir()]
            gloo = [task for task in tasks if "gloo" in (task / "comm").read_text()]
            assert gloo
            assert {os.sched_getscheduler(int(task.name)) for task in gloo} == {os.SCHED_BATCH}
