"""Each launcher takes what its README says: addresses, host files, numbers of processes, or no launcher at all."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import PATH, output_of
from tests.support.schedulers import mpi
from tests.support.schedulers.slurm import Cluster
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, train

STEPS = ("--max-steps", "12")
TCP = "tcp://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def reference(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    train(project(), run_dir, *STEPS)
    return run_dir


@mpi.NEEDS_OPENMPI
def test_launch_sh_of_mpirun_reads_host_files(project: Render, reference: Path, free_port: int, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    place = {"HOSTFILE": str(tmp_path / "hosts"), "HEAD": "127.0.0.1", "PORT": str(free_port)}
    command = ["./launch.sh", "2", *ON_CPU, "--run-dir", str(tmp_path / "run"), *STEPS]
    output_of(command, project(launcher="mpirun"), mpi.environment("Open MPI", tmp_path) | place)
    assert_same_weights(checkpoint(tmp_path / "run"), checkpoint(reference))


@pytest.mark.parametrize("variables", [{"NPROC": "2"}, {}], ids=["told", "without GPUs"])
def test_launch_sh_of_spawn_starts_as_many_as_told(variables: dict[str, str], project: Render, tmp_path: Path) -> None:
    command = ["./launch.sh", *ON_CPU, "--run-dir", str(tmp_path / "run"), "--max-steps", "2"]
    output_of(command, project(launcher="spawn"), os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": PATH} | variables)
    assert checkpoint(tmp_path / "run")["world_size"] == int(variables.get("NPROC", 1))


@pytest.mark.parametrize(
    ("launcher", "method"), [("spawn", TCP), ("spawn", "env://"), pytest.param("mpirun", TCP, marks=mpi.NEEDS_OPENMPI)]
)
def test_ranks_meet_at_the_address_that_is_given(
    launcher: str, method: str, project: Render, reference: Path, free_port: int, tmp_path: Path
) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)} if method == "env://" else {}
    place = ["--init-method", method.format(port=free_port)]
    train(project(launcher=launcher), tmp_path / "run", *STEPS, *place, launcher=launcher, env=variables)
    assert_same_weights(checkpoint(tmp_path / "run"), checkpoint(reference))


def test_an_elastic_launcher_refuses_a_tcp_address(project: Render, tmp_path: Path) -> None:
    printed = train(project(), tmp_path / "run", "--init-method", "tcp://127.0.0.1:29500", code=1)
    assert printed.count("error: --init-method tcp://127.0.0.1:29500 cannot work under") == 1
    assert "exitcode  : 2" in printed


@pytest.mark.parametrize(
    "launcher", ["torchrun", "launch", "spawn", "slurm", pytest.param("mpirun", marks=mpi.NEEDS_OPENMPI)]
)
def test_what_comes_after_training_runs_on_two_processes_as_written(
    launcher: str, project: Render, reference: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A program says by which command; it gives what one process gives."""
    place = project(launcher=launcher)
    env = mpi.environment("Open MPI", tmp_path) if launcher == "mpirun" else os.environ | {"PATH": PATH}
    to, files = tmp_path / "predictions.jsonl", "ddp_project/digits.npz"
    given = {"RUN": str(reference), "FOLDER ": "", "FILE...": f"{reference}/export {files} --to {to}"}

    def output(program: str, start: str) -> str:
        line = next(line for line in (place / program).read_text().splitlines() if line.startswith(start))
        command = f"{line.removeprefix(start).strip()} {' '.join(ON_CPU)}"
        for word, value in given.items():
            command = command.replace(word, value)
        if "srun" in command:
            cluster: Cluster = request.getfixturevalue("slurm_cluster")
            return cluster.run(
                "srun", "--chdir", place, *command.replace("python ", f"{sys.executable} ").split()[1:]
            ).stdout
        return output_of(["bash", "-c", command], place, env)

    output_of([sys.executable, "export.py", reference], place)
    evaluated = []
    for start in ("Of another run, or a checkpoint:", "On two processes:"):
        [line] = [line for line in output("evaluate.py", start).splitlines() if line.startswith("{")]
        evaluated.append(json.loads(line))
    assert evaluated[0].pop("set") == evaluated[1].pop("set")
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)
    written = []
    for start in ("Another one:", "On two processes:"):
        output("predict.py", start)
        written.append(to.read_text())
        to.unlink()
    assert written[0] == written[1]


def test_steps_of_one_job_of_slurm_train_beside_each_other(
    project: Render, slurm_cluster: Cluster, tmp_path: Path
) -> None:
    train = f"srun --exact --ntasks=2 {sys.executable} train.py {' '.join(ON_CPU)} --max-steps 3 --run-dir {tmp_path}"
    script = f"{train}/one & first=$!; {train}/two && wait $first"
    place = (f"--chdir={project(launcher='slurm')}", f"--output={tmp_path}/log")
    job = slurm_cluster.submit(*place, "--nodes=1", "--ntasks=4", "--wrap", script)
    assert slurm_cluster.wait(job).exit_code == 0, (tmp_path / "log").read_text()
    for run in ("one", "two"):
        assert "world size 2" in (tmp_path / run / "train.log").read_text()
