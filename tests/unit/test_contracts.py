"""What launchers tell their ranks, as the check tells it."""

import platform
from multiprocessing import forkserver
from pathlib import Path

import pytest

from generator.check.static import source_files
from generator.check.train.environments import places
from generator.check.train.forking import is_free
from generator.check.train.modules import imports_of


@pytest.mark.parametrize(
    ("launcher", "name", "values"),
    [
        ("torchrun", "RANK", ["0", "1"]),
        ("launch", "WORLD_SIZE", ["2", "2"]),
        ("slurm", "SLURM_PROCID", ["0", "1"]),
        ("mpirun", "OMPI_COMM_WORLD_RANK", ["0", "1"]),
        ("one that is not known", "LOCAL_RANK", ["0", "1"]),
    ],
)
def test_each_rank_is_told_its_place_as_its_launcher_does(launcher: str, name: str, values: list[str]) -> None:
    told = places(launcher, 2, 12345)
    assert [place.env[name] for place in told] == values
    assert {place.env["MASTER_PORT"] for place in told} == {"12345"}
    arguments = [place.arguments for place in told]
    assert arguments == ([["--local-rank=0"], ["--local-rank=1"]] if launcher == "launch" else [[], []])


def test_a_program_that_starts_its_ranks_is_told_how_many() -> None:
    (place,) = places("spawn", 2, 12345)
    assert (place.env, place.arguments) == ({}, ["--nproc", "2"])


def test_a_port_that_is_listened_at_is_not_free() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_rank_finds_no_module_of_its_project_imported(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for file, text in {
        "train.py": "import own.model\nimport csv\n",
        "own/model.py": "from json import dumps\n",
    }.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "pyproject.toml").touch()
    assert imports_of([source_files(tmp_path)]) == ["csv", "json"]


def test_python_still_has_the_private_names_that_forking_changes() -> None:
    server = vars(forkserver)["_forkserver"]
    for name in ("_forkserver_pid", "_forkserver_alive_fd", "_stop", "ensure_running"):
        assert hasattr(server, name), f"{name} with Python {platform.python_version()}"
