"""One line is all that one sees of a wrong option, and of Ctrl-C before the training begins."""

import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.support.processes import PATH, Session, output_of, run_in_terminal
from tests.support.training import ON_CPU, checkpoint, train

LAUNCHED = {"torchrun": [], "spawn": [], "launch": [], "kubernetes": [], "mpirun": ["2"], "slurm": [], "ray": ["1"]}
NOTHING_SAVED = "stopped before the training began: there is no new checkpoint"
INTERRUPTED_AT = """
import os, runpy, sys

class Interrupt:
    def find_spec(self, name, *where):
        if name == os.environ["MODULE"]:
            os.kill(os.getpid(), 2)
        if name + ".__set_name__" == os.environ["MODULE"]:  # as Python 3.11 says it, where a class is made
            raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

sys.meta_path.insert(0, Interrupt())
sys.path.insert(0, "")
sys.argv[0] = os.environ["PROGRAM"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
INTERRUPTS = [
    ("train.py", "tyro", "interrupted", -signal.SIGINT),
    ("train.py", "tyro.__set_name__", "interrupted", 130),
    ("train.py", "torch", NOTHING_SAVED, 130),
    ("train.py", "ddp_project.model", NOTHING_SAVED, 130),
    ("export.py", "torch", "interrupted", -signal.SIGINT),
]
ADDRESS = "give an address of node 0, such as 10.0.0.1, 10.0.0.1:29400 or [fe80::1]:29400"
WRONG_VARIABLES = [
    ({"NPROC_PER_NODE": "0"}, "NPROC_PER_NODE is '0': give a number of processes, or auto"),
    ({"NUMA_BINDING": "core"}, "NUMA_BINDING is 'core': give node, socket, exclusive or core-complex"),
    (
        {"NUMA_BINDING": "node", "PATH": "/usr/bin:/bin"},
        "NUMA_BINDING needs nvidia-smi: install it, or unset NUMA_BINDING",
    ),
    ({"RDZV_TIMEOUT": "-1"}, "RDZV_TIMEOUT is '-1': give seconds"),
    ({"HEAD": "localhost", "PORT": "abc"}, f"RDZV_ENDPOINT is 'localhost:abc': {ADDRESS}"),
    ({"NNODES": "x"}, "NNODES is 'x': give the number of nodes"),
    ({"NNODES": "2"}, "NODE_RANK is '': give the number of this node, from 0"),
    ({"NNODES": "2", "NODE_RANK": "1"}, f"RDZV_ENDPOINT is '': {ADDRESS}"),
    ({"NODE_RANK": "1"}, "NODE_RANK is 1: give a number from 0 to 0, since NNODES is 1"),
    ({"NODE_RANK": "08"}, "NODE_RANK is '08': give the number of this node, from 0"),
    ({"RDZV_TIMEOUT": "0"}, "RDZV_TIMEOUT is '0': give seconds"),
    ({"RDZV_ENDPOINT": "::1"}, f"RDZV_ENDPOINT is '::1': {ADDRESS}"),
    ({"RDZV_ENDPOINT": "localhost:99999"}, "RDZV_ENDPOINT is localhost:99999: ports end at 65535"),
    (
        {"NPROC_PER_NODE": "gpu", "CUDA_VISIBLE_DEVICES": ""},
        "NPROC_PER_NODE is gpu, and torch finds none here: see --doctor, or give auto",
    ),
]
OF_TORCHRUN = [
    ({"JOB_ID": "a/b"}, "JOB_ID is 'a/b': give a name without /"),
    (
        {"NNODES": "2:1", "NODE_RANK": "0", "RDZV_ENDPOINT": "localhost"},
        "NNODES is 2:1: give the smaller number first",
    ),
]

# What launch.sh would start with torchrun waits for ten minutes.
IN_VAIN = [
    ("launch", "./launch.sh"),
    (
        "torchrun",
        "exec python -m ddp_project.runtime.launcher --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=a"
        " --rdzv-endpoint=$RDZV_ENDPOINT --rdzv-conf=is_host=1,join_timeout=2 train.py",
    ),
]


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_launch_sh_answers_a_wrong_option_and_help_once(launcher: str, project: Render) -> None:
    """Without colours, also in a terminal, and before it starts ranks or submits a job."""

    def launch(*options: str) -> Session:
        command = ["./launch.sh", *LAUNCHED[launcher], *options]
        return run_in_terminal(command, project(launcher=launcher), {**os.environ, "PATH": PATH})

    refused, helped, in_full = launch("--learning-rate", "3"), launch("--help"), launch("--help", "all")
    assert refused.lines == ["error: there is no option --learning-rate: did you mean --lr?"]
    assert (helped.plain.count("--epochs INT"), refused.code, helped.code) == (1, 2, 0)
    assert ("--bucket-mib INT" in helped.plain, "--bucket-mib INT" in in_full.plain) == (False, True)
    assert not (project(launcher=launcher) / "runs").exists()


@pytest.mark.parametrize(
    ("launcher", "variables", "words"),
    [
        *(("torchrun", *each) for each in WRONG_VARIABLES + OF_TORCHRUN),
        *(("launch", *each) for each in WRONG_VARIABLES),
    ],
)
def test_launch_sh_refuses_a_wrong_variable(launcher: str, variables: Any, words: str, project: Render) -> None:
    env = {**os.environ, "PATH": PATH, **variables}
    assert output_of(["./launch.sh"], project(launcher=launcher), env, code=2) == f"error: {words}\n"


def test_launch_sh_names_a_port_that_is_in_use(project: Render) -> None:
    """And not the address of node 0, which is this node."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        env = {**os.environ, "PATH": PATH, "RDZV_ENDPOINT": f"{host}:{port}"}
        printed = output_of(["./launch.sh"], project(), env, code=69)
    assert printed == "error: the port of RDZV_ENDPOINT (or PORT) is in use here: choose another\n"


@pytest.mark.parametrize(("launcher", "command"), IN_VAIN)
def test_node_0_that_waits_in_vain_says_so(launcher: str, command: str, free_port: int, project: Render) -> None:
    variables = {"NNODES": "2", "NODE_RANK": "0", "RDZV_ENDPOINT": f"127.0.0.1:{free_port}", "RDZV_TIMEOUT": "1"}
    env = {**os.environ, "PATH": PATH, **variables}
    printed = output_of(["sh", "-c", command], project(launcher=launcher), env, code=69)
    assert printed.splitlines()[-1] == "error: not all nodes have come: start all of them, with the same variables"
    assert "Traceback" not in printed


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_launch_sh_elsewhere_names_the_folder_that_it_needs(launcher: str, project: Render, tmp_path: Path) -> None:
    command = [str(project(launcher=launcher) / "launch.sh"), *LAUNCHED[launcher]]
    printed = output_of(command, tmp_path, {**os.environ, "PATH": PATH}, code=2)
    assert printed == "error: there is no train.py here: start launch.sh in the folder of the project\n"


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["0"], {}, "say first how many processes: ./launch.sh 8 --epochs 20"),
        (["2"], {"HOSTFILE": "nowhere", "RDZV_ENDPOINT": "localhost"}, "HOSTFILE nowhere cannot be read"),
        (
            ["2"],
            {"HOSTFILE": "train.py", "RDZV_ENDPOINT": "::1"},
            "RDZV_ENDPOINT is '::1': give an address of the first",
        ),
        (["2"], {"HOSTFILE": "train.py", "RDZV_ENDPOINT": "a:99999"}, "RDZV_ENDPOINT is 'a:99999': give an address of"),
    ],
)
def test_launch_sh_of_mpirun_refuses_a_wrong_number_file_or_address(
    words: list[str], variables: dict[str, str], said: str, project: Render
) -> None:
    env = {**os.environ, "PATH": PATH, **variables}
    assert output_of(["./launch.sh", *words], project(launcher="mpirun"), env, code=2).startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("launcher", "options"), [("slurm", []), ("mpirun", []), ("launch", ["--local_rank=0"])]  # as older torch gives it
)
def test_one_process_needs_no_launcher(launcher: str, options: list[str], project: Render, tmp_path: Path) -> None:
    train(project(launcher=launcher), tmp_path / "run", "--max-steps", "2", *options, launcher="alone")
    assert checkpoint(tmp_path / "run")["world_size"] == 1


@pytest.mark.parametrize("launcher", ["torchrun", "launch"])
def test_empty_variables_of_a_launcher_are_those_of_one_process(launcher: str, project: Render, tmp_path: Path) -> None:
    """As templates of pods leave them."""
    empty = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"), "")
    command = [sys.executable, "train.py", *ON_CPU, "--max-steps", "1", "--run-dir", str(tmp_path / "run")]
    assert "world size 1" in output_of(command, project(launcher=launcher), {**os.environ, **empty})


@pytest.mark.parametrize("launcher", ["torchrun", "launch"])
@pytest.mark.parametrize("variables", ["WORLD_SIZE=2", "RANK=1", "RANK=2 WORLD_SIZE=2"])
def test_variables_that_name_no_rank_are_refused_at_once(variables: str, launcher: str, project: Render) -> None:
    """Else the ranks that nobody starts would be waited for."""
    env = {**os.environ, **dict(each.split("=") for each in variables.split())}
    printed = output_of([sys.executable, "train.py"], project(launcher=launcher), env, code=2)
    assert re.fullmatch(r"error: WORLD_SIZE is . and RANK is .*: start ranks with ./launch.sh, or unset .*\n", printed)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--help all | head -0", 0),
        ("--doctor --device cpu | head -0", 0),
        ("--doctor --device cpu | head -1", 1),
    ],
)
def test_help_and_doctor_end_in_silence_with_what_reads_them(words: str, lines: int, project: Render) -> None:
    """Also where Python does not buffer, and writes line by line."""
    command = ["bash", "-c", f"{sys.executable} -u train.py {words}"]
    assert output_of(command, project()).count("\n") == lines


def test_a_node_0_may_have_an_address_of_ipv6(project: Render, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": PATH, "RDZV_ENDPOINT": "[::1]:0", "NPROC_PER_NODE": "2"}
    command = ["./launch.sh", *ON_CPU, "--max-steps", "1", "--run-dir", str(tmp_path / "run")]
    assert "world size 2" in output_of(command, project(), env)


@pytest.mark.parametrize(("program", "module", "line", "code"), INTERRUPTS)
def test_ctrl_c_before_training_is_one_line(program: str, module: str, line: str, code: int, project: Render) -> None:
    env = {**os.environ, "MODULE": module, "PROGRAM": program}
    assert output_of([sys.executable, "-c", INTERRUPTED_AT], project(), env, code=code) == f"{line}\n"


def test_an_error_is_one_write(project: Render) -> None:
    """Else what another process prints could come into the line: python -u writes each part by itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-u", "train.py", *ON_CPU, "--global-batch-size", "100000"]
    with ours:
        with theirs:
            assert subprocess.run(command, cwd=project(), stderr=theirs.fileno()).returncode == 2
        *_, last = iter(partial(ours.recv, 10_000), b"")
    assert re.fullmatch(rb"error: .*--global-batch-size.*\n", last), last
