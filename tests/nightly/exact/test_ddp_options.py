"""Options of DistributedDataParallel that trade time for something else: what they change, and what they must not."""

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import Render
from tests.support.ranks import error_in, run_train, train_on_ranks
from tests.support.training import EXACTLY, HAS_GPU, ON_GPU, assert_same_weights, checkpoint

STEPS = ("--max-steps", "12")
REFUSED = [
    (["--bf16-gradients"], "--bf16-gradients needs NCCL, and this run uses gloo"),
    (["--static-graph", "--accum-steps", "2"], "--static-graph goes with neither"),
    (["--static-graph", "--find-unused-parameters"], "--static-graph goes with neither"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("option", [("--static-graph",), ("--bucket-mib", "1")], ids=" ".join)
def test_how_gradients_are_sent_changes_no_bit(option: tuple[str, ...], project: Render, tmp_path: Path) -> None:
    for name, given in {"run": option, "plain": ()}.items():
        train_on_ranks(project(), tmp_path / name, *EXACTLY, *STEPS, *given)
    assert_same_weights(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "plain"))


def train_as_with_nccl() -> None:
    """What a rank does that takes Gloo for NCCL: Gloo adds up bfloat16, too, but torch promises it for NCCL alone."""
    vars(dist)["get_backend"] = lambda group=None: "nccl"
    with mock.patch.object(DistributedDataParallel, "_check_comm_hook"):
        run_train()


@pytest.mark.gpu
def test_gradients_may_travel_in_bfloat16(project: Render, tmp_path: Path) -> None:
    """The weights, which AdamW moves by up to lr in each step, keep float32 and are nearly the same."""
    # NCCL wants a GPU for each process.
    options, entry, processes = (ON_GPU, run_train, 1) if HAS_GPU else ((), train_as_with_nccl, 2)
    for name, given in {"rounded": ["--bf16-gradients"], "exact": []}.items():
        train_on_ranks(project(), tmp_path / name, *options, *STEPS, *given, processes=processes, entry=entry)
    rounded, exact = (checkpoint(tmp_path / name)["model"]["classifier.2.weight"] for name in ("rounded", "exact"))
    assert rounded.dtype == torch.float32
    assert 1e-6 < (rounded - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_options_that_cannot_work_are_refused(options: list[str], words: str, project: Render, tmp_path: Path) -> None:
    """With no_sync(), torch would end the run by an internal error."""
    assert f"error: {words}" in error_in(train_on_ranks(project(), tmp_path / "run", *options, code=2))
