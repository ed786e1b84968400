"""What ranks say in one line, and what Ctrl-C leads to, is the last thing that launch.sh and train.py show."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.check.launchers import OPEN_MPI
from tests.conftest import Render
from tests.core.test_last_line import NOTHING_SAVED
from tests.support.processes import PATH, Session, output_of, run_in_terminal
from tests.support.schedulers.mpi import NEEDS_OPENMPI
from tests.support.training import FOR_EVER, LAUNCHERS, ON_CPU

STARTS = {launcher: ["./launch.sh"] for launcher in ("torchrun", "launch", "kubernetes", "spawn")}
STARTS |= {"mpirun": ["./launch.sh", "2"], "alone": [sys.executable, "train.py"]}
# Each Python has a file while it runs. It removes the file as it ends, while its handlers of signals are still there.
NOTED = """
import atexit, os, pathlib
mark = pathlib.Path("{running}", str(os.getpid()))
mark.touch()
atexit.register(mark.unlink, missing_ok=True)
"""
Start = Callable[..., Session]
ERRORS = [
    (["--global-batch-size", "100", "--accum-steps", "3"], "error: --global-batch-size 100 is no multiple of", 2),
    (["--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1"], "error: the gradients of 1 steps in a row", 65),
]


@pytest.fixture(params=[pytest.param(name, marks=NEEDS_OPENMPI if name == "mpirun" else ()) for name in STARTS])
def start(request: pytest.FixtureRequest, project: Render, tmp_path: Path) -> Start:
    """Return what starts two processes in a terminal, or one alone."""

    def run(*options: str, interrupt: float | str | None = None, **variables: str) -> Session:
        place = project(launcher="torchrun" if request.param == "alone" else request.param)
        env = {
            **os.environ,
            **OPEN_MPI,
            "PATH": PATH,
            "NPROC": "2",
            "NPROC_PER_NODE": "2",
            "MAX_RESTARTS": "3",
            **variables,
        }
        command = [*STARTS[request.param], *ON_CPU, "--run-dir", str(tmp_path / "run"), *options]
        return run_in_terminal(command, place, env, interrupt=interrupt)

    return run


@pytest.mark.parametrize(("options", "line", "code"), ERRORS, ids=["refused", "diverged"])
def test_an_error_of_all_ranks_is_the_last_line(start: Start, options: list[str], line: str, code: int) -> None:
    session = start(*options)
    assert session.lines[-1].startswith(line), session.shown
    assert (session.shown.count("error:"), session.code) == (1, code)


def test_ctrl_c_ends_with_where_it_stopped(start: Start) -> None:
    session = start(*FOR_EVER, interrupt="loss ")
    assert "stopped after step" in session.lines[-4], session.shown
    assert session.lines[-1].endswith("next: the same command with --resume")
    assert "Traceback" not in session.shown
    assert session.code == 75


@pytest.mark.parametrize("moment", [0.3, 0.9, 1.5, 2.5])
def test_an_early_ctrl_c_is_one_line(start: Start, moment: float, tmp_path: Path) -> None:
    (running := tmp_path / "running").mkdir()
    (tmp_path / "sitecustomize.py").write_text(NOTED.format(running=running))
    session = start(*FOR_EVER, interrupt=moment, PYTHONPATH=str(tmp_path))
    if "Fatal Python error: init_" in session.shown:  # Python itself had not begun, and no line of the project
        return
    if (session.lines, session.code) == ([""], -signal.SIGINT):  # the shell alone, before or between its commands
        assert not [*running.iterdir()], "a Python has ended without a word"
        return
    assert "Traceback" not in session.shown
    assert "stopped after step" in session.shown or session.lines[-1] in ("interrupted", NOTHING_SAVED)
    assert session.code in (75, 130, -signal.SIGINT), session.shown


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("option", "code", "told"), [("--help", 0, "--global-batch-size"), ("--lrr", 2, "--lrr")])
def test_help_and_refusals_do_without_torch(launcher: str, option: str, code: int, told: str, project: Render) -> None:
    env = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    printed = output_of([sys.executable, "train.py", option], project(launcher=launcher), env, code=code)
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", printed, re.MULTILINE))
    assert "tyro" in imported, "the record is not what it was"
    assert not {"torch", "numpy", "rich"} & imported
    assert told in re.sub(r"^import time:.*\n", "", printed, flags=re.MULTILINE)
