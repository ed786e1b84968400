"""Jobs on a real Ray cluster of two nodes survive what nobody chose; their driver starts ranks that are lost anew."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from generator.chaos.faults import Need, NoVictim, possible_faults
from generator.chaos.job import Job, LaunchedJob, Starter, command_of, launch
from generator.chaos.nemesis import Nemesis
from tests.conftest import Render
from tests.support.chaos import befall
from tests.support.schedulers.ray import RayCluster

from .conftest import Note, slowness

FAULTS = 35
NODES = 2


class RayJob(LaunchedJob):
    """A job that launch.sh has submitted, and follows: its processes are Ray's, and have no mark."""

    def processes(self) -> list[psutil.Process]:
        """Return those that have its run directory in their command line."""
        found = []
        for process in psutil.process_iter():
            if any(str(self.run_dir) in word for word in command_of(process)):
                found.append(process)
        return found


@dataclass
class Nodes:
    """The nodes of the cluster, but for the first one, without which there is none."""

    cluster: RayCluster

    def take(self, job: Job, victim: float) -> None:
        """Kill all that runs on the newest one."""
        if not job.ranks() or len(self.cluster.raylets) < NODES:
            raise NoVictim
        self.cluster.lose_node()

    def restore(self) -> None:
        """Add a new one."""
        self.cluster.add_nodes(NODES)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A cluster of two nodes."""
    cluster = RayCluster()
    cluster.add_nodes(NODES)
    yield cluster
    cluster.shut_down()


def submitted(project: Path, folder: Path, cluster: RayCluster) -> Starter:
    """Return what submits a job for both nodes; for one of them, if there is but one process."""

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        nodes = min(processes, NODES)
        variables = cluster.variables | {"RAY_ADDRESS": cluster.address, "JOB_ID": uuid.uuid4().hex}
        job = launch(project, folder, [str(nodes)], variables)(run_dir, processes // nodes, options)
        return RayJob(run_dir, job.process, job.printed, job.mark)

    return start


def test_faults_that_nobody_chose_are_survived(
    own_project: Render, cluster: RayCluster, tmp_path: Path, note: Note
) -> None:
    place, nodes = own_project(launcher="ray", logging="csv"), Nodes(cluster)
    kinds = possible_faults(Need.DISK, Need.MACHINES)
    start = submitted(place, tmp_path, cluster)
    nemesis = Nemesis(place, start, "csv", tmp_path, kinds, machines=nodes, slowness=slowness)
    note("Ray on two nodes", befall(nemesis, FAULTS, seed=1000))
