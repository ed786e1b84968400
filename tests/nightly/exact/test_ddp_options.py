"""Options of DistributedDataParallel that trade time for something else: what they change, and what they must not."""

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import Render
from tests.support.ranks import run_train, train_on_ranks
from tests.support.training import assert_same_weights, checkpoint

STEPS = ("--max-steps", "12")


@pytest.fixture(scope="module")
def plain(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run without them."""
    run_dir = tmp_path_factory.mktemp("plain") / "run"
    train_on_ranks(project(), run_dir, *STEPS)
    return run_dir


@pytest.mark.parametrize("option", [("--static-graph",), ("--bucket-mib", "1")], ids=" ".join)
def test_how_gradients_are_sent_changes_no_bit(
    option: tuple[str, ...], plain: Path, project: Render, tmp_path: Path
) -> None:
    train_on_ranks(project(), tmp_path / "run", *STEPS, *option)
    assert_same_weights(checkpoint(tmp_path / "run"), checkpoint(plain))


def train_as_with_nccl() -> None:
    """What a rank does that takes Gloo for NCCL: Gloo adds up bfloat16, too, but torch promises it for NCCL alone."""
    vars(dist)["get_backend"] = lambda group=None: "nccl"
    with mock.patch.object(DistributedDataParallel, "_check_comm_hook"):
        run_train()


def test_gradients_may_travel_in_bfloat16(plain: Path, project: Render, tmp_path: Path) -> None:
    """The weights, which AdamW moves by up to lr in each step, keep float32 and are nearly the same."""
    train_on_ranks(project(), tmp_path / "run", *STEPS, "--bf16-gradients", entry=train_as_with_nccl)
    rounded, exact = (checkpoint(run_dir)["model"]["classifier.2.weight"] for run_dir in (tmp_path / "run", plain))
    assert rounded.dtype == torch.float32
    assert 1e-6 < (rounded - exact).norm() / exact.norm() < 0.05


def test_gloo_is_refused_for_gradients_in_bfloat16(project: Render, tmp_path: Path) -> None:
    printed = train_on_ranks(project(), tmp_path / "run", "--bf16-gradients", code=2)
    assert "error: --bf16-gradients needs NCCL, and this run uses gloo" in printed[0]


@pytest.mark.parametrize("other", [("--accum-steps", "2"), ("--find-unused-parameters",)], ids=" ".join)
def test_a_static_graph_excludes_what_changes_it(other: tuple[str, ...], project: Render, tmp_path: Path) -> None:
    """With no_sync(), torch would end the run by an internal error."""
    printed = train_on_ranks(project(), tmp_path / "run", "--static-graph", *other, code=2)
    assert "error: --static-graph goes with neither" in printed[0]
