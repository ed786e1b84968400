"""Jobs of a real Slurm on two nodes survive what nobody chose; those that queue again by themselves may do so."""

import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from generator.chaos.faults import LOST, Need, NoVictim, possible_faults
from generator.chaos.job import MARK, Job, Starter, command_of, marked_processes, ranks_among
from generator.chaos.nemesis import Nemesis
from tests.conftest import Render
from tests.support.chaos import befall
from tests.support.schedulers.slurm import ENDED, Cluster
from tools.slurm import NODES

from .conftest import Note, slowness

FAULTS = 70
LOOKS_EVERY = 0.2  # seconds: each look starts a program
# srun ends with the highest code of all tasks: also of one that it ends itself, before that task listens to signals or
# when it hangs, and of those that only miss the one which failed.
HIDES = [LOST, 128 + signal.SIGTERM, 128 + signal.SIGKILL]
STATE_OF_LOSS = "NODE_FAIL"


@dataclass
class BatchJob(Job):
    """A job in the queue, also while it waits there."""

    run_dir: Path
    cluster: Cluster
    id: int
    printed: Path
    mark: str
    ended: int | None = None
    looked: float = 0.0  # time.monotonic()

    def launchers(self) -> list[psutil.Process]:
        """Return the shell that runs launch.sh."""
        return [each for each in self.processes() if any("slurm_script" in word for word in command_of(each))]

    def ranks(self) -> list[psutil.Process]:
        """Return those that train."""
        return ranks_among(self.processes())

    def processes(self) -> list[psutil.Process]:
        """Return those of all nodes."""
        return marked_processes(self.mark)

    def code(self) -> int | None:
        """Return that of the shell, once Slurm does not start it any more."""
        if self.ended is None and time.monotonic() > self.looked + LOOKS_EVERY:
            job, self.looked = self.cluster.job(self.id), time.monotonic()
            if job.state in ENDED:
                lost = LOST if job.state == STATE_OF_LOSS else job.exit_code
                self.ended = 128 + job.signal if job.signal else lost
        return self.ended

    def output(self) -> str:
        """Return what the job has printed."""
        return self.printed.read_text(errors="replace") if self.printed.exists() else ""

    def end(self) -> None:
        """Take it from the queue, too."""
        self.cluster.run("scancel", "--signal=KILL", "--full", str(self.id), check=False)
        self.cluster.run("scancel", str(self.id), check=False)
        super().end()


@dataclass
class Nodes:
    """The nodes of the cluster, which others want, too."""

    cluster: Cluster

    def take(self, job: Job, victim: float) -> None:
        """Submit a job that goes first."""
        if not job.ranks():
            raise NoVictim
        self.cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")

    def restore(self) -> None:
        """Do nothing: that job is short."""


def submitted(project: Path, folder: Path, cluster: Cluster) -> Starter:
    """Return what submits a job for both nodes; for one of them, if there is but one process."""

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        mark = uuid.uuid4().hex
        nodes, printed = min(processes, len(NODES)), folder / f"output-{mark}.log"
        request = [f"--nodes={nodes}", f"--ntasks-per-node={processes // nodes}", f"--output={printed}"]
        variables = {MARK: mark, "OMP_NUM_THREADS": "1"}
        job = cluster.launch(project, "--run-dir", str(run_dir), *options, request=request, **variables)
        return BatchJob(run_dir, cluster, job, printed, mark)

    return start


def test_faults_that_nobody_chose_are_survived(
    own_project: Render, slurm_cluster: Cluster, tmp_path: Path, note: Note
) -> None:
    place = own_project(launcher="slurm", logging="csv")
    start, nodes = submitted(place, tmp_path, slurm_cluster), Nodes(slurm_cluster)
    kinds = possible_faults(Need.LAUNCHER, Need.MACHINES)
    nemesis = Nemesis(place, start, "csv", tmp_path, kinds, machines=nodes, hides=HIDES, slowness=slowness)
    note("Slurm on two nodes", befall(nemesis, FAULTS, seed=900))
