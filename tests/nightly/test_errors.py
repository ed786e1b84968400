"""A mistake of the user ends every rank with one line and code 2; a programming error shows where it happened."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Render
from tests.support.ranks import train_on_ranks
from tests.support.schedulers import mpi
from tests.support.training import HAS_GPU, train
from tools.rewriting import Rewrite


def foreign_file(folder: Path) -> Path:
    """A file that torch reads, and that is no checkpoint of the program."""
    torch.save({"weights": torch.zeros(3)}, folder / "foreign.pt")
    return folder / "foreign.pt"


def damaged_file(folder: Path) -> Path:
    """A file that torch cannot read."""
    (folder / "damaged.pt").write_bytes(b"\x80\x02 this is no checkpoint")
    return folder / "damaged.pt"


REFUSALS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "batch": (lambda _: ["--global-batch-size", "63"], "--global-batch-size 63 is no multiple of 2"),
    "accumulation": (lambda _: ["--accum-steps", "5"], "world size 1 x --accum-steps 5: 60 or 65 would do"),
    "data": (lambda _: ["--global-batch-size", "2000"], "the 1437 training samples do not fill a micro-batch of 2000"),
    "workers": (lambda _: ["--workers", "2000"], "--workers 2000 is too much for the cores of a rank: give at most"),
    "nccl": (lambda _: ["--backend", "nccl"], "--backend nccl needs a GPU and this run is on the CPU"),
    "missing": (lambda folder: ["--resume", str(folder / "no.pt")], "there is no checkpoint"),
    "newest": (lambda _: ["--resume"], "there is no checkpoint"),
    "foreign": (lambda folder: ["--resume", str(foreign_file(folder))], "is not a checkpoint of this program"),
    "damaged": (lambda folder: ["--resume", str(damaged_file(folder))], "cannot be read as a checkpoint"),
    "unwritable": (lambda _: ["--run-dir", "/proc/run"], "cannot write to --run-dir /proc/run"),
}


# Found before the ranks meet, after it, on rank 0 alone, on every rank: one process each is enough for the others.
ON_TWO = ("batch", "workers", "missing", "damaged", "unwritable")


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mistake_ends_all_ranks_with_one_line(case: str, project: Render, tmp_path: Path) -> None:
    options, message = REFUSALS[case]
    processes = 2 if case in ON_TWO else 1
    printed = "".join(train_on_ranks(project(), tmp_path / "run", *options(tmp_path), processes=processes, code=2))
    errors = [line for line in printed.splitlines() if " INFO " not in line]
    assert len(errors) == 1, printed
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    if case not in ("foreign", "damaged"):
        assert not (tmp_path / "run").exists(), "a refused run must leave nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--resume"], "there is no checkpoint"), (["--init-method", "tcp://"], "could not meet the others")],
    ids=["newest", "address"],
)
def test_a_mistake_is_told_once_where_the_program_starts_its_ranks(
    options: list[str], message: str, project: Render, tmp_path: Path
) -> None:
    printed = train(project(launcher="spawn"), tmp_path / "run", *options, launcher="spawn", code=2, timeout=60)
    errors = [line for line in printed.splitlines() if " INFO " not in line]
    assert len(errors) == 1, printed
    assert errors[0].startswith("error: ")
    assert message in errors[0]


@pytest.mark.skipif(HAS_GPU, reason="there are GPUs")
def test_a_missing_gpu_is_told_once(project: Render, tmp_path: Path) -> None:
    printed = train(project(launcher="spawn"), tmp_path / "run", "--device", "cuda", launcher="spawn", code=2)
    assert printed.count("error: --device cuda needs a GPU, and none is visible: give --device cpu") == 1


@pytest.mark.skipif(torch.distributed.is_mpi_available(), reason="this torch has MPI")
@pytest.mark.skipif(mpi.openmpi_mpirun() is None, reason=mpi.missing_openmpi() or "")
def test_a_torch_without_mpi_is_told(project: Render, tmp_path: Path) -> None:
    place = project(launcher="mpirun", backend="mpi")
    printed = train(place, tmp_path / "run", "--backend", "mpi", launcher="mpirun", code=2)
    assert printed.count("error: this PyTorch is built without MPI: give --backend gloo") == 1


def test_the_backend_option_overrides_the_answer(project: Render, tmp_path: Path) -> None:
    train(project(launcher="mpirun", backend="mpi"), tmp_path / "run", "--max-steps", "1", launcher="alone")
    train(project(backend="nccl"), tmp_path / "run2", "--max-steps", "1", launcher="alone")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epoch", "3"], "error: Unrecognized options: --epoch"),
        (["--epochs", "0"], "error: Error parsing --epochs: 0 is not a number of at least 1"),
        (["--lr", "nan"], "error: Error parsing --lr: nan is not a number of at least 0"),
        (["--backend", "mpi"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_told_once(options: list[str], message: str, project: Render, tmp_path: Path) -> None:
    printed = train(project(), tmp_path / "run", *options, code=1, timeout=60)
    program = printed.split("torch/distributed/elastic")[0]
    assert program.count(message) == 1, printed
    assert program.count("error: ") == 1
    assert "Traceback" not in program
    assert "exitcode  : 2" in printed
    assert not (tmp_path / "run").exists()


def test_a_run_directory_is_not_used_twice(project: Render, tmp_path: Path) -> None:
    train(project(launcher="spawn"), tmp_path / "run", "--max-steps", "1", launcher="spawn")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    printed = train(project(launcher="spawn"), tmp_path / "run", "--max-steps", "1", launcher="spawn", code=2)
    assert "holds a run already: go on with --resume" in printed
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "spawn", "mpirun"])
def test_a_programming_error_names_the_rank_that_failed_first(launcher: str, project: Render, tmp_path: Path) -> None:
    if launcher == "mpirun" and mpi.openmpi_mpirun() is None:
        pytest.skip(mpi.missing_openmpi() or "")
    place = shutil.copytree(project(launcher=launcher), tmp_path / "project")
    planted = (
        'import torch.distributed\n\nif torch.distributed.get_rank() == 1:\n    raise ArithmeticError("planted")\n{}'
    )
    Rewrite("logits: Tensor = $X", planted, "forward").apply(next(place.glob("*/model.py")))
    printed = train(place, tmp_path / "run", launcher=launcher, code=1, timeout=60)
    assert "ArithmeticError: planted" in printed
    first = {
        "torchrun": "rank      : 1 (local_rank: 1)",
        "launch": "rank      : 1 (local_rank: 1)",
        "spawn": "Process 1 terminated with the following error",
        "mpirun": "rank 1 failed",
    }
    assert first[launcher] in printed.split("Root Cause")[-1]
