"""What the training loop costs: its collectives, and threads that could hold each other up."""

from pathlib import Path

from tests.conftest import Render
from tests.support.ranks import collectives_of_an_epoch, gradients_beside_buckets, on_two_ranks


def test_one_reduction_a_step_and_one_a_report(project: Render, tmp_path: Path) -> None:
    # 1,437 samples in micro-batches of 16 are 89, in windows of 3 are 30 steps; reports after 7, 14, 21, 28 and 30.
    chosen = {"run_dir": tmp_path / "run", "global_batch_size": 48, "accum_steps": 3, "log_every": 7}
    for counted in on_two_ranks(collectives_of_an_epoch, tmp_path, project(), chosen):
        # The others come once: DDP agrees on the order of its buckets, and the ranks on the names of the metrics.
        assert counted == {"gloo:all_reduce": 30 + 5, "gloo:broadcast": 2, "gloo:all_gather": 2}


def test_gradients_of_micro_batches_take_no_memory_beside_ddps_buckets(project: Render, tmp_path: Path) -> None:
    chosen = {"run_dir": tmp_path, "global_batch_size": 360, "accum_steps": 3}
    for found in on_two_ranks(gradients_beside_buckets, tmp_path, project(), chosen):
        assert found["in buckets"] == 0
        assert found["fresh"] > 0.9 * found["weights"], "those of micro-batches before the last one"
