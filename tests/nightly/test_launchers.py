"""Every launcher starts a real training, on two processes, and all of them end with the same weights."""

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.support.processes import PATH, output_of, scaled, started
from tests.support.schedulers import mpi
from tests.support.schedulers.slurm import Cluster
from tests.support.training import LAUNCHERS, ON_CPU, assert_same_weights, checkpoint, train
from tools.rewriting import Rewrite

STEPS = ("--max-steps", "12")
# Each "machine" of these tests is the same one: tied to one core, a rank alone on its machine computes with one thread,
# as two ranks that share two cores do. Another number of threads adds up in another order.
ONE_CORE = ("taskset", "--cpu-list", "0")


def needs(reason: str | None) -> pytest.MarkDecorator:
    """Skip a test where what it needs is not here, and say what that is."""
    return pytest.mark.skipif(reason is not None, reason=reason or "")


NEEDS_OPENMPI = needs(mpi.missing_openmpi())
NEEDS_MPICH = needs(mpi.missing_mpich())


@pytest.fixture(scope="module")
def reference(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint of a short run under torchrun."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    train(project(), run_dir, *STEPS)
    return checkpoint(run_dir)


def test_the_default_project_reaches_97_percent_on_two_processes(project: Render, tmp_path: Path) -> None:
    printed = train(project(), tmp_path / "run")
    assert checkpoint(tmp_path / "run", "best.pt")["progress"]["best"] >= 0.97
    assert "done: best validation accuracy" in printed


@pytest.mark.parametrize(
    "launcher",
    ["launch", "spawn", pytest.param("mpirun", marks=NEEDS_OPENMPI), pytest.param("mpich", marks=NEEDS_MPICH)],
)
def test_a_launcher_of_one_machine_gives_the_same_weights(
    launcher: str, project: Render, reference: dict[str, Any], tmp_path: Path
) -> None:
    answer = "mpirun" if launcher == "mpich" else launcher
    train(project(launcher=answer), tmp_path / "run", *STEPS, launcher=launcher)
    assert checkpoint(tmp_path / "run")["world_size"] == 2
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_process_needs_no_launcher(launcher: str, project: Render, tmp_path: Path) -> None:
    train(project(launcher=launcher), tmp_path / "run", "--max-steps", "2", launcher="alone")
    assert checkpoint(tmp_path / "run")["world_size"] == 1


def test_srun_over_two_nodes_gives_the_same_weights(
    project: Render, reference: dict[str, Any], slurm_cluster: Cluster, tmp_path: Path
) -> None:
    program = [*ONE_CORE, sys.executable, "train.py", *ON_CPU, "--run-dir", str(tmp_path / "run"), *STEPS]
    slurm_cluster.run("srun", "--chdir", str(project(launcher="slurm")), "--nodes=2", "--ntasks=2", *program)
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


def test_sbatch_runs_the_file_of_the_project(
    project: Render, reference: dict[str, Any], slurm_cluster: Cluster, tmp_path: Path
) -> None:
    options = [*ON_CPU, "--run-dir", str(tmp_path / "run"), *STEPS]
    python_first = f"ALL,PATH={PATH}"
    place = ["--chdir", str(project(launcher="slurm")), "--output", str(tmp_path / "job.log"), "--export", python_first]
    batch_file = str(project(launcher="slurm") / "launch.sh")
    job = slurm_cluster.wait(slurm_cluster.submit(*place, batch_file, *options))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), (tmp_path / "job.log").read_text()
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


@pytest.mark.parametrize("launcher", ["torchrun", "launch"])
def test_launch_script_joins_two_agents(
    launcher: str, project: Render, reference: dict[str, Any], free_port: int, tmp_path: Path
) -> None:
    variables = {"NNODES": "2", "HEAD": "127.0.0.1", "PORT": str(free_port), "NPROC_PER_NODE": "1"}
    outputs = []
    with ExitStack() as running:
        for node_rank in range(2):
            node = {"NODE_RANK": str(node_rank), "LOCAL_ADDR": "127.0.0.1", **variables}
            command = [*ONE_CORE, "./launch.sh", *ON_CPU, "--run-dir", str(tmp_path / "run"), *STEPS]
            output, env = tmp_path / f"node{node_rank}.log", os.environ | node | {"PATH": PATH}
            agent = running.enter_context(started(command, project(launcher=launcher), output, env))
            outputs.append((agent, output))
        for agent, output in outputs:
            assert agent.wait(timeout=scaled(200)) == 0, output.read_text()
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


@NEEDS_OPENMPI
def test_launch_script_of_mpirun_reads_a_host_file(
    project: Render, reference: dict[str, Any], free_port: int, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").symlink_to(mpi.openmpi_mpirun() or "")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    variables = {
        "HOSTFILE": str(tmp_path / "hosts"),
        "HEAD": "127.0.0.1",
        "PORT": str(free_port),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{tmp_path / 'bin'}:{PATH}",
    }
    command = ["./launch.sh", "2", *ON_CPU, "--run-dir", str(tmp_path / "run"), *STEPS]
    output_of(command, project(launcher="mpirun"), os.environ | variables)
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


@pytest.mark.parametrize("variables", [{"NPROC": "2"}, {}], ids=["told", "without GPUs"])
def test_launch_script_of_spawn_starts_as_many_as_it_is_told_or_one(
    variables: dict[str, str], project: Render, tmp_path: Path
) -> None:
    command = ["./launch.sh", *ON_CPU, "--run-dir", str(tmp_path / "run"), "--max-steps", "2"]
    output_of(command, project(launcher="spawn"), os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": PATH} | variables)
    assert checkpoint(tmp_path / "run")["world_size"] == int(variables.get("NPROC", 1))


@pytest.mark.parametrize("method", ["tcp://127.0.0.1:{port}", "env://"])
def test_spawn_takes_other_meeting_places(
    method: str, project: Render, reference: dict[str, Any], free_port: int, tmp_path: Path
) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    place = ["--init-method", method.format(port=free_port)]
    train(project(launcher="spawn"), tmp_path / "run", *STEPS, *place, launcher="spawn", env=variables)
    assert_same_weights(checkpoint(tmp_path / "run"), reference)


@NEEDS_OPENMPI
def test_mpirun_takes_a_tcp_address(project: Render, free_port: int, tmp_path: Path) -> None:
    place = ["--init-method", f"tcp://127.0.0.1:{free_port}"]
    train(project(launcher="mpirun"), tmp_path / "run", "--max-steps", "2", *place, launcher="mpirun")
    assert checkpoint(tmp_path / "run")["world_size"] == 2


@pytest.mark.parametrize("launcher", ["torchrun", "launch"])
def test_elastic_launchers_refuse_a_tcp_address(launcher: str, project: Render, tmp_path: Path) -> None:
    place = ["--init-method", "tcp://127.0.0.1:29500"]
    printed = train(project(launcher=launcher), tmp_path / "run", *place, launcher=launcher, code=1)
    assert printed.count("error: --init-method tcp://127.0.0.1:29500 cannot work under") == 1
    assert "exitcode  : 2" in printed


@pytest.mark.parametrize("option", ["--local-rank=0", "--local_rank=0"])
def test_launch_takes_both_forms_of_local_rank(option: str, project: Render, tmp_path: Path) -> None:
    train(project(launcher="launch"), tmp_path / "run", "--max-steps", "2", option, launcher="alone")


@pytest.fixture(scope="module")
def threads(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose training tells how many threads each rank computes with."""
    copy = shutil.copytree(project(launcher="spawn"), tmp_path_factory.mktemp("threads") / "project")
    # In one piece, newline included: two ranks write to the same pipe.
    telling = 'print(f"threads: {torch.get_num_threads()}\\n", end="")'
    Rewrite("run = Run($$$A)", f"{telling}\n{{}}", "main").apply(copy / "train.py")
    return copy


def test_ranks_share_the_cores_of_their_machine(threads: Path, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for processes in (1, 2):
        printed = train(
            threads, tmp_path / f"run{processes}", "--max-steps", "1", launcher="spawn", processes=processes
        )
        assert printed.count(f"threads: {max(1, cores // processes)}\n") == processes
