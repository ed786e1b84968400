"""A loss that compares the rows of all ranks has the value and the gradient of one process on the whole batch."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.core.exact.test_processes import CLIP_NORM, OPTIONS, largest_difference, recipe
from tests.support import reference
from tests.support.forked_runs import Program, metrics, owned_by, run_all
from tests.support.ranks import error_in
from tools.rewriting import Rewrite, extend

# Appended to task.py. A third of the samples have no row, so ranks have different numbers of rows.
COMPUTE = """

def compute(model: nn.Module, batch: Any, config: Config) -> dict[str, Mean]:
    own = model(batch[0])[batch[1] != 0]
    everything, first = gather_with_grad(own)
    assert torch.equal(everything[first : first + len(own)], own)
    loss = F.cross_entropy(own @ everything.T, first + torch.arange(len(own), device=own.device), reduction="sum")
    return {"loss": Mean(loss, len(own)), "accuracy": Mean(len(everything) * len(own), len(own))}
"""
OF_RANK = Rewrite("gather_with_grad(own)", "gather_with_grad(own[:, : 2 + torch.distributed.get_rank()])")


@pytest.fixture
def contrastive(plain_project: Path, tmp_path: Path) -> Path:
    """Return a project that evaluates three samples: of four ranks, one has a batch that does not count."""
    project = owned_by(plain_project, reference.MODEL, tmp_path / "project")
    (project / "ddp_project" / "data.py").write_text(reference.DATA.replace("range(10)", "range(3)"))
    extend(project / "ddp_project" / "task.py", COMPUTE, imports="from .runtime import gather_with_grad\n")
    return project


def on_one_two_and_four(project: Path, folder: Path, options: dict[str, Any]) -> list[Program]:
    programs = [Program(project, folder / str(size), OPTIONS | options, size) for size in (1, 2, 4)]
    run_all([[program] for program in programs])
    return programs


def rows_of(network: nn.Module, samples: Sequence[int]) -> Tensor:
    images, labels = (column[[*samples]] for column in reference.data())
    rows: Tensor = network(images)[labels != 0]
    return rows


def loss_of(rows: Tensor) -> Tensor:
    return F.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def trained_plainly(orders: reference.Orders) -> dict[str, Tensor]:
    network = reference.model()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    for samples, lr in reference.windows(recipe(), orders):
        loss_of(rows_of(network, samples)).backward()
        reference.take_step(network, optimizer, lr, CLIP_NORM)
    return network.state_dict()


def test_a_loss_over_the_rows_of_all_ranks_trains_as_one_process(
    contrastive: Path, orders: list[list[int]], tmp_path: Path
) -> None:
    """Over evaluations, too, after which the rows of every rank count again."""
    expected = trained_plainly(orders)
    for program in on_one_two_and_four(contrastive, tmp_path, {}):
        assert largest_difference(program, expected) <= 1e-6, f"{program.world_size} processes"


@pytest.mark.parametrize("samples", [3, 10])
def test_an_evaluation_compares_the_rows_that_count(samples: int, contrastive: Path, tmp_path: Path) -> None:
    data = contrastive / "ddp_project" / "data.py"
    data.write_text(data.read_text().replace("range(3)", f"range({samples})"))
    rows = rows_of(reference.model(), range(samples))
    for program in on_one_two_and_four(contrastive, tmp_path, {"epochs": 1, "lr": 0.0}):
        found = metrics(program.run_dir)
        assert found["epoch/validation_accuracy"][0][1] == len(rows), f"{program.world_size} processes"
        assert found["epoch/validation_loss"][0][1] == pytest.approx(loss_of(rows).item(), rel=1e-6)


def test_rows_that_cannot_be_gathered_are_refused(contrastive: Path, tmp_path: Path) -> None:
    other = shutil.copytree(contrastive, tmp_path / "other")
    OF_RANK.apply(other / "ddp_project" / "task.py")
    programs = [
        Program(contrastive, tmp_path / "one", OPTIONS | {"accum_steps": 2}, 1, code=2),
        Program(contrastive, tmp_path / "two", OPTIONS | {"accum_steps": 2}, 2, code=2),
        Program(other, tmp_path / "shapes", OPTIONS, 2, code=2),
    ]
    none = shutil.copytree(contrastive, tmp_path / "none")
    Rewrite("gather_with_grad($X)", "gather_with_grad($X.sum())").apply(none / "ddp_project" / "task.py")
    programs.append(Program(none, tmp_path / "scalar", OPTIONS, 1, code=2))
    one, two, shapes, scalar = (error_in(ended.output) for [ended] in run_all([[program] for program in programs]))
    assert one == two
    assert "takes a tensor with a row for each sample, not one of shape ()" in scalar
    assert one.startswith("error: --accum-steps 2 does not go with gather_with_grad() in task.py")
    assert (
        "rows of the same shape and dtype on all ranks, not (2,) of torch.float32 and (3,) of torch.float32" in shapes
    )
