"""What ends a job early, under real schedulers, costs it no step: it writes a checkpoint, and goes on where it was."""

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Measured, Render
from tests.support.processes import scaled, started, wait_for_line, wait_until
from tests.support.schedulers import mpi
from tests.support.schedulers.slurm import Cluster, Job
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, train
from tools.rewriting import Rewrite

LAST = 120
STEPS = ("--max-steps", str(LAST), "--log-every", "2")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
KILLED, STOPPED = 137, 75
Paced = Callable[[str], Path]
CANCELS: dict[str, tuple[list[list[str]], str]] = {  # by what is cancelled: options of scancel, and the state
    "USR1": ([["--signal=USR1"]], "FAILED"),
    "all of it": ([[]], "CANCELLED"),
    "TERM to the shell": ([["--batch", "--signal=TERM"]], "FAILED"),
    "all of it when its time is up": ([["--batch", "--signal=USR1"], []], "CANCELLED"),
}


def process_of_rank(rank: str, run_dir: Path) -> int:
    for process in psutil.process_iter(["cmdline", "environ"]):
        command, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        is_rank = str(run_dir) in command and command[1].endswith("train.py")
        if is_rank and variables.get("SLURM_PROCID") == rank:
            return int(process.pid)
    raise AssertionError(f"rank {rank} is not there")


def since(started: float) -> float:
    return round(time.perf_counter() - started, 1)


def has_trained(run_dir: Path) -> bool:
    log = run_dir / "train.log"
    return log.exists() and "step 2 " in log.read_text()


@pytest.fixture(scope="module")
def paced(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Paced:
    """Return a project whose training takes a minute, and each checkpoint some seconds, until it resumes."""

    @functools.cache
    def get(launcher: str) -> Path:
        copy = shutil.copytree(project(launcher=launcher), tmp_path_factory.mktemp("paced") / "project")
        pace = "__import__('time').sleep(0 if {}config.resume else {})\n{{}}"
        Rewrite("run.progress.advance($$$A)", pace.format("run.", 0.5), "train_step").apply(copy / "train.py")
        # Slurm lets jobs of this cluster live for 10 seconds after TERM, Open MPI its ranks for 2.
        saving = pace.format("self.", 3 if launcher == "mpirun" else 1)
        Rewrite("put(file)", saving, "_write").apply(copy / "ddp_project" / "runtime" / "checkpoint.py")
        return copy

    return get


@pytest.fixture(scope="module")
def whole(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(project(), run_dir, *STEPS)
    return checkpoint(run_dir)


class Batch:
    """A job of launch.sh over both nodes, whose training would take a minute."""

    def __init__(self, cluster: Cluster, place: Path, folder: Path, *request: str, saving: int = 0) -> None:
        """Submit it, with further options of sbatch, and return when it has trained."""
        self.cluster, self.run_dir, self.log = cluster, folder / "run", folder / "job.log"
        training = [*ON_CPU, "--run-dir", str(self.run_dir), *STEPS, "--save-every", str(saving)]
        self.id = cluster.launch(place, *training, request=[*TWO_NODES, f"--output={self.log}", *request])
        wait_until(lambda: has_trained(self.run_dir))

    def end(self, *, restarts: int) -> Job:
        """Wait until it has ended for good and return its state; it was queued again so often."""
        job = self.cluster.wait(self.id)
        assert job.restarts == restarts, self.log.read_text()
        return job

    def assert_stopped(self) -> None:
        """It wrote a whole checkpoint, before any rank left, and each rank left with the code that says so."""
        written = checkpoint(self.run_dir)
        assert written["world_size"] == 2
        assert f"stopped after step {written['progress']['step']};" in (self.run_dir / "train.log").read_text()
        for node, rank in (("n1", 0), ("n2", 1)):
            assert f"{node}: task {rank}: Exited with exit code {STOPPED}" in self.log.read_text()

    def assert_goes_on(self, whole: dict[str, Any]) -> float:
        """It begins again by itself, and ends as if nothing had happened. Returns the seconds until it goes on."""
        started = time.perf_counter()
        log = self.run_dir / "train.log"
        wait_until(lambda: "resumed from" in log.read_text())
        seconds = since(started)
        job = self.end(restarts=1)
        assert (job.state, job.exit_code) == ("COMPLETED", 0), self.log.read_text()
        assert checkpoint(self.run_dir)["progress"]["step"] == LAST
        assert_same_weights(checkpoint(self.run_dir), whole)
        return seconds


def let_the_time_end(job: Batch) -> None:
    """Slurm does it, with its signal, 30 to 60 s after the start: launch.sh listens then, and the training goes on."""
    wait_for_line(job.log, "is requeued", 90)
    job.assert_stopped()


def make_way(job: Batch) -> None:
    """Submit a job to the partition that goes first."""
    request = [*TWO_NODES, "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true"]
    job.cluster.wait(job.cluster.submit(*request))


def requeue(job: Batch) -> None:
    job.cluster.run("scontrol", "requeue", str(job.id))


def lose_a_node(job: Batch) -> None:
    """Let Slurm think that the second node is gone, and back."""
    job.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    # It may have come back by itself.
    job.cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME", check=False)


@pytest.mark.parametrize(
    ("event", "wanted"),
    [(let_the_time_end, ["--time=2", "--signal=B:USR1@60"]), (make_way, []), (requeue, []), (lose_a_node, [])],
)
def test_a_job_goes_on_after(
    event: Any, wanted: list[str], paced: Paced, whole: Any, slurm_cluster: Cluster, tmp_path: Path, measured: Measured
) -> None:
    job = Batch(slurm_cluster, paced("slurm"), tmp_path, *wanted)
    event(job)
    measured("preemption", f"{event.__name__} in Slurm: seconds until the job goes on", job.assert_goes_on(whole))


def test_a_job_whose_rank_was_killed_goes_on_when_it_is_queued_again(
    paced: Paced, whole: dict[str, Any], slurm_cluster: Cluster, tmp_path: Path, measured: Measured
) -> None:
    job = Batch(slurm_cluster, paced("slurm"), tmp_path, saving=10)
    wait_until((job.run_dir / "checkpoints" / "last.pt").exists)
    started = time.perf_counter()
    os.kill(process_of_rank("1", job.run_dir), signal.SIGKILL)
    ended = job.end(restarts=0)
    measured("preemption", "rank 1 killed in Slurm: seconds until the job ends", since(started))
    assert (ended.state, ended.exit_code) == ("FAILED", KILLED)
    requeue(job)
    job.assert_goes_on(whole)


@pytest.mark.parametrize("what", CANCELS)
def test_a_job_that_its_owner_stops_stays_away(what: str, paced: Paced, slurm_cluster: Cluster, tmp_path: Path) -> None:
    job, (cancels, state) = Batch(slurm_cluster, paced("slurm"), tmp_path), CANCELS[what]
    for options in cancels:
        job.cluster.run("scancel", *options, str(job.id))
    ended = job.end(restarts=0)
    assert ended.state == state
    assert state == "CANCELLED" or ended.exit_code == STOPPED
    job.assert_stopped()


@pytest.mark.parametrize("mpirun", mpi.EACH_MPIRUN)
def test_a_signal_to_the_launch_script_of_mpirun_leaves_the_ranks_time_to_save(
    mpirun: str, paced: Paced, whole: dict[str, Any], tmp_path: Path, measured: Measured
) -> None:
    number = {"Open MPI": signal.SIGTERM, "MPICH": signal.SIGINT}[mpirun]
    run_dir, output, env = tmp_path / "run", tmp_path / "output.log", mpi.environment(mpirun, tmp_path)
    command = ["./launch.sh", "2", *ON_CPU, "--run-dir", str(run_dir), *STEPS]
    with started(command, paced("mpirun"), output, env) as process:
        wait_until(lambda: has_trained(run_dir))
        signalled = time.perf_counter()
        process.send_signal(number)
        assert process.wait(timeout=scaled(30)) == STOPPED, output.read_text()
        measured("preemption", f"{mpirun}, {number.name}, save of 3 s: seconds to stop", since(signalled))
    written = checkpoint(run_dir)
    assert written["world_size"] == 2
    assert f"stopped after step {written['progress']['step']};" in (run_dir / "train.log").read_text()
    assert [file.name for file in (run_dir / "checkpoints").glob("*.tmp")] == []
    train(paced("mpirun"), run_dir, *STEPS, "--resume", launcher="mpich" if mpirun == "MPICH" else "mpirun")
    assert_same_weights(checkpoint(run_dir), whole)
