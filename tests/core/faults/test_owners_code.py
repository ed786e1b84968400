"""Code of the owner that fails on one rank ends all of them within seconds, and names rank, step, sample and file."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.conftest import Render
from tests.support.chaos import run_in_session
from tests.support.ranks import error_in, run_train, start_ranks, train_on_ranks, wrap

SOON = 20  # seconds from the start to the end; --timeout is 2000
GOOD = 40  # samples that a process loads before it fails
# By what fails on rank 1: its exit code, and what it says.
FAILING = {
    "a sample raises": (1, r"it fails, loading data, after step \d+: RuntimeError.* sample \d+ cannot be lo.*: .*lost"),
    "one of several samples raises": (1, r"it fails, loading data, after step \d+: .*one of samples \d+, .* lost"),
    "a sample has another shape": (2, r"error: data\.py: sample \d+ is .*\(1, 8, 8\).*, and sample \d+ .*\(1, 8, 9\)"),
    "the forward pass raises": (1, r"it fails, training, after step \d+: ValueError out of order"),
    "the forward pass uses other weights": (2, r"error: .*parameters took no part in a step: other.weight, other.bias"),
}


# The model does not know of workers.
CASES = [(what, workers) for what in FAILING for workers in (0, 1) if not (workers and "forward" in what)]


class Failing(Dataset[Any]):
    """The digits, one by one, which after some samples are not what they should be on rank 1."""

    def __init__(self, digits: Any) -> None:
        self.digits = digits
        self.loaded = 0

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        image, label = self.digits[index]
        self.loaded += 1
        if os.environ["RANK"] != "1" or self.loaded < GOOD:
            return image, label
        if os.environ["FAILS"] == "a sample has another shape":
            return torch.cat([image, image[..., :1]], dim=-1), label
        raise ValueError("lost")


class FailingModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 10), nn.Linear(64, 10)
        self.batches = 0

    def forward(self, images: Tensor) -> Tensor:
        self.batches += self.training
        late = os.environ["RANK"] == "1" and self.batches > 3
        if late and os.environ["FAILS"] == "the forward pass raises":
            raise ValueError("out of order")
        logits: Tensor = self.one(images.flatten(1))
        return logits if late else logits + self.other(images.flatten(1))


class FailingWhole(Failing):
    def __getitems__(self, indices: list[int]) -> Any:
        return tuple(map(torch.stack, zip(*(self[index] for index in indices), strict=True)))


def train_what_fails() -> None:
    dataset = FailingWhole if "several" in os.environ["FAILS"] else Failing
    if "sample" in os.environ["FAILS"]:
        wrap("data.load_data", lambda load: lambda config: tuple(map(dataset, load(config))))
    if "forward" in os.environ["FAILS"]:
        wrap("model.build_model", lambda build: lambda config: FailingModel())
    run_in_session()


def train_without_an_optimizer_on_one_rank() -> None:
    found = None if os.environ["RANK"] == "1" else nn.Identity
    wrap("task.build_optimizer", lambda build: lambda *given: found and build(*given))
    run_in_session()


def test_a_rank_says_what_rank_zero_cannot_know(project: Render, tmp_path: Path) -> None:
    """A launcher ends rank 0 meanwhile, before it can say that another rank has ended."""
    options = ("--timeout", "2000")
    one, other = start_ranks(project(), tmp_path / "run", *options, entry=train_without_an_optimizer_on_one_rank)
    assert "error: task.py: build_optimizer() must return an optimizer" in other.ends_with(2, timeout=SOON)
    one.kill()


@pytest.mark.parametrize(("what", "workers"), CASES)
def test_all_ranks_end_and_one_line_says_why(what: str, workers: int, project: Render, tmp_path: Path) -> None:
    options = ("--epochs", "1000", "--workers", str(workers), "--timeout", "2000")
    one, other = start_ranks(project(), tmp_path / "run", *options, env={"FAILS": what}, entry=train_what_fails)
    code, said = FAILING[what]
    of_the_other = one.ends_with(69, timeout=SOON)
    printed = other.ends_with(code, timeout=SOON)
    assert re.search(said, printed + of_the_other), printed + of_the_other
    assert ("Traceback" in printed) == (code == 1)
    assert "error: rank 1 has ended: " in of_the_other
    assert "Traceback" not in of_the_other


def call_backward_in_compute() -> None:
    def make(compute: Any) -> Any:
        def compute_and_call_it(model: nn.Module, batch: Any, config: Any) -> Any:
            means = compute(model, batch, config)
            if torch.is_grad_enabled():
                means["loss"].sum.backward(retain_graph=os.environ["RETAINS"] == "True")
            return means

        return compute_and_call_it

    wrap("task.compute", make)
    run_train()


@pytest.mark.parametrize("retains", [False, True])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_compute_leaves_backward_to_train_py(parallel: str, retains: bool, project: Render, tmp_path: Path) -> None:
    """With its graph, gradients would be twice as large, and nothing would say so."""
    how: dict[str, Any] = {"entry": call_backward_in_compute, "env": {"RETAINS": str(retains)}, "code": 2}
    printed = train_on_ranks(project(parallel=parallel), tmp_path / "run", **how)
    assert error_in(printed).startswith("error: task.py: compute() must return the loss, and leave backward() to")
