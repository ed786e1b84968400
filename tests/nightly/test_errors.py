"""A mistake of the user ends every rank with one line and code 2; a programming error shows where it happened."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import Render
from tests.support.ranks import lone_error_in, train_on_ranks
from tests.support.schedulers import mpi
from tests.support.training import train
from tools.rewriting import Rewrite

# The number of processes, the options and the message. One process is enough for what is found before ranks meet.
REFUSALS: dict[str, tuple[int, list[str], str]] = {
    "accumulation": (1, ["--accum-steps", "5"], "world size 1 x --accum-steps 5: 60 or 65 would do"),
    "data": (1, ["--global-batch-size", "2000"], "samples do not fill a micro-batch of 2000"),
    "workers": (2, ["--workers", "2000"], "--workers 2000 is too much for the cores of a rank: give at most"),
    "nccl": (1, ["--backend", "nccl"], "--backend nccl needs CUDA devices, and this run is on CPU"),
    "missing": (2, ["--resume", "FOLDER/no.pt"], "there is no checkpoint"),
    "foreign": (1, ["--resume", "FOLDER/foreign.pt"], "is not a checkpoint of this program"),
    "unwritable": (2, ["--run-dir", "/proc/run"], "cannot write to --run-dir /proc/run"),
}
PLANTED = 'import torch.distributed\n\nif torch.distributed.get_rank() == 1:\n    raise ArithmeticError("planted")\n{}'
FIRST = [
    ("torchrun", "rank      : 1 (local_rank: 1)"),
    ("spawn", "Process 1 terminated with the following error"),
    pytest.param("mpirun", "rank 1 failed", marks=mpi.NEEDS_OPENMPI),
]


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mistake_ends_all_ranks_with_one_line(case: str, project: Render, tmp_path: Path) -> None:
    processes, options, message = REFUSALS[case]
    torch.save({"weights": torch.zeros(3)}, tmp_path / "foreign.pt")
    given = [option.replace("FOLDER", str(tmp_path)) for option in options]
    assert message in lone_error_in(train_on_ranks(project(), tmp_path / "run", *given, processes=processes, code=2))
    assert case == "foreign" or not (tmp_path / "run").exists(), "a refused run must leave nothing"


def test_spawn_tells_a_mistake_once(project: Render, tmp_path: Path) -> None:
    """Also if rank 0 has the error seconds after the others, as on a machine with much to do."""
    place = shutil.copytree(project(launcher="spawn"), tmp_path / "project")
    late = Rewrite("end_with_parent()", "{}\n__import__('time').sleep(4 * (rank == 0))", "rank_process")
    late.apply(next(place.glob("*/runtime/distributed.py")))
    options = ("--init-method", "tcp://")
    printed = train(place, tmp_path / "run", *options, launcher="spawn", code=2, timeout=60)
    assert "could not meet the others" in lone_error_in([printed])


@pytest.mark.skipif(torch.distributed.is_mpi_available(), reason="this torch has MPI")
@mpi.NEEDS_OPENMPI
def test_a_torch_without_mpi_is_told(project: Render, tmp_path: Path) -> None:
    place = project(launcher="mpirun", backend="mpi")
    printed = train(place, tmp_path / "run", "--backend", "mpi", launcher="mpirun", code=2)
    assert printed.count("error: this PyTorch is built without MPI: give --backend gloo") == 1


@pytest.mark.parametrize(("launcher", "first"), FIRST)
def test_a_programming_error_names_the_rank_that_failed_first(
    launcher: str, first: str, project: Render, tmp_path: Path
) -> None:
    place = shutil.copytree(project(launcher=launcher), tmp_path / "project")
    Rewrite("logits: Tensor = $X", PLANTED, "forward").apply(next(place.glob("*/model.py")))
    printed = train(place, tmp_path / "run", launcher=launcher, code=1, timeout=60)
    assert "ArithmeticError: planted" in printed
    assert first in printed.split("Root Cause")[-1]
