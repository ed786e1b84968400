"""Jobs of Kubernetes on two nodes survive what nobody chose; a stand-in for JobSet starts those anew that fail."""

import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import psutil
import pytest
import yaml

from generator.chaos.faults import Need, NoVictim, possible_faults, send
from generator.chaos.job import MARK, Job, Starter, command_of, marked_processes, ranks_among
from generator.chaos.nemesis import Nemesis
from tests.conftest import Render
from tests.support import hosts
from tests.support.chaos import befall
from tests.support.schedulers.kubernetes import Cluster, JobSet, Pod, missing

from .conftest import Note, slowness
from .on_hosts import HEAD_TIMEOUT, HostLink

FAULTS = 50
NEEDS = (Need.LAUNCHER, Need.DISK, Need.LINK, Need.MACHINES)
# Pods that never meet start again and again.
KINDS = [kind for kind in possible_faults(*NEEDS) if kind != "link cut for good"]


class MarkedJobSet(JobSet):
    """Its processes are found by a mark."""

    mark: str
    codes: Sequence[int | None] = ()  # of the pods, when one has failed

    def variables(self, number: int) -> dict[str, str]:
        """Add the mark."""
        return super().variables(number) | {MARK: self.mark, "HEAD_TIMEOUT": str(HEAD_TIMEOUT)}

    def wait(self) -> list[int | None]:
        """Note the codes, too."""
        self.codes = super().wait()
        return self.codes


@dataclass
class PodsJob(Job):
    """A job that pods run, and their successors."""

    run_dir: Path
    jobset: MarkedJobSet
    ended: int | None = None
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        try:
            while (state := self.jobset.follow()) == "Restarting":
                pass
            self.ended = 0 if state == "Complete" else next(code for code in self.jobset.codes if code)
        except BaseException as error:
            self.errors.append(error)

    def launchers(self) -> list[psutil.Process]:
        """Return what torchrun is on each node."""
        running = [each for each in self.processes() if "-m" in command_of(each)]
        return [each for each in running if any(word.endswith("runtime.launcher") for word in command_of(each))]

    def ranks(self) -> list[psutil.Process]:
        """Return those that train."""
        return ranks_among(self.processes())

    def processes(self) -> list[psutil.Process]:
        """Return those of all pods."""
        return marked_processes(self.jobset.mark)

    def code(self) -> int | None:
        """Return that of the job, once its pods are not started any more."""
        if self.errors:
            raise self.errors[0]
        return self.ended

    def output(self) -> str:
        """Return what the pods have printed."""
        return self.jobset.output

    def end(self) -> None:
        """Let no pod come after these."""
        while self.thread.is_alive():
            self.jobset.restarts = self.jobset.spec["failurePolicy"]["maxRestarts"]
            super().end()
            time.sleep(0.1)


class Nodes:
    """The nodes of a job."""

    def take(self, job: Job, victim: float) -> None:
        """Kill all that runs on one."""
        assert isinstance(job, PodsJob)
        pods: Sequence[Pod] = job.jobset.pods
        if not job.ranks():
            raise NoVictim
        try:
            [first] = psutil.Process(pods[int(victim * len(pods))].process.pid).children()
        except (psutil.NoSuchProcess, ValueError, IndexError) as error:
            raise NoVictim from error
        send(9, first)

    def restore(self) -> None:
        """Do nothing: pods come by themselves."""


@pytest.fixture
def both() -> Iterator[tuple[hosts.Host, hosts.Host]]:
    """Two hosts, which are the nodes."""
    if reason := missing() or hosts.missing("unshare") or hosts.missing("nft"):
        pytest.skip(reason)
    with hosts.two_hosts() as both:
        yield both


def edited(project: Path, nodes: int, processes: int) -> Path:
    """Return a copy of the project whose job has so many nodes, and ranks on each."""
    place = project.with_name(f"{nodes}-nodes-{processes}")
    if not place.exists():
        shutil.copytree(project, place)
        subprocess.run(["git", "init", "--quiet", place], check=True)
        file = place / "kubernetes" / "job.yaml"
        job = yaml.safe_load(file.read_text())
        job["spec"]["trainer"] |= {"image": "registry.test/image", "numNodes": nodes, "numProcPerNode": processes}
        file.write_text(yaml.safe_dump(job))
    return place


def submitted(project: Path, folder: Path, both: Sequence[hosts.Host], stack: ExitStack) -> Starter:
    """Return what submits a job for both nodes; for one of them, if there is but one process."""

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        name, nodes = f"c{uuid.uuid4().hex[:20]}", both[:processes]
        cluster = Cluster(folder / name)
        command = ["./launch.sh", "--run-dir", str(run_dir), *options]
        cluster.submit(edited(project, len(nodes), processes // len(nodes)), *command, NAME=name)
        jobset = MarkedJobSet(cluster, nodes, stack)
        jobset.mark = name
        jobset.start()
        return PodsJob(run_dir, jobset)

    return start


def test_faults_that_nobody_chose_are_survived(
    own_project: Render, both: tuple[hosts.Host, hosts.Host], tmp_path: Path, note: Note
) -> None:
    place = own_project(launcher="kubernetes", logging="csv")
    with ExitStack() as stack:
        start, link = submitted(place, tmp_path, both, stack), HostLink(both)
        nemesis = Nemesis(place, start, "csv", tmp_path, KINDS, link=link, machines=Nodes(), slowness=slowness)
        note("Kubernetes on two nodes", befall(nemesis, FAULTS, seed=1124))
