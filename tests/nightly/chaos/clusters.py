"""Jobs for the nemesis on more than one machine: on hosts whose link can be cut, and of Slurm, Ray and Kubernetes."""

import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import psutil
import pytest
import yaml

from generator.chaos.faults import LOST, NoVictim
from generator.chaos.job import MARK, Job, LaunchedJob, Starter, command_of, launch
from generator.chaos.surroundings import Surroundings
from tests.support import hosts
from tests.support.hosts import LINK, Host
from tests.support.schedulers import kubernetes, slurm
from tests.support.schedulers.ray import RayCluster
from tools.slurm import NODES as OF_SLURM

NODES = 2
HEAD_TIMEOUT = 10  # seconds, of launch.sh
WALL = "add table inet ddp; add chain inet ddp in {{ type filter hook input priority 0; }}; add rule inet ddp in {}"
# A kernel need not have netem, which delays packets; to drop what comes too fast slows connections, too.
DROPPED = {"slow": "limit rate over 500 kbytes/second drop", "lossy": "numgen random mod 100 < 5 drop"}
LOOKS_EVERY = 0.2  # seconds: each look at a job of Slurm starts a program
# What starts a project, and what is around it; it takes the project, the folder for what is printed, and what ends it.
Make = Callable[[Path, Path, ExitStack, pytest.FixtureRequest], tuple[Starter, Surroundings]]


@dataclass
class HostLink:
    """The link between two hosts: "sound", "cut", "slow" or "lossy"."""

    hosts: tuple[Host, Host]

    def set_state(self, state: str) -> None:
        for host in self.hosts:
            host.set_link("down" if state == "cut" else "up")
            subprocess.run(host.command("nft", "delete table inet ddp"), capture_output=True)  # if there is one
            if state in DROPPED:
                host.run("nft", WALL.format(f"iifname {LINK} {DROPPED[state]}"))


class Nodes:
    """The nodes of a cluster, of which new ones come by themselves."""

    def restore(self) -> None:
        pass


@dataclass
class HostsJob(Job):
    run_dir: Path
    machines: list[Job]
    first: int = 0  # exit code that is not 0, of the machine that ended first

    def launchers(self) -> list[psutil.Process]:
        return [launcher for machine in self.machines for launcher in machine.launchers()]

    def processes(self) -> list[psutil.Process]:
        return [process for machine in self.machines for process in machine.processes()]

    def code(self) -> int | None:
        codes = [machine.code() for machine in self.machines]
        self.first = self.first or next((code for code in codes if code), 0)
        return None if None in codes else self.first

    def output(self) -> str:
        return "".join(machine.output() for machine in self.machines)


def on_two_hosts(project: Path, folder: Path, stack: ExitStack, _: object) -> tuple[Starter, Surroundings]:
    """On one of them, if there is but one process."""
    if reason := hosts.missing("nft"):
        pytest.skip(reason)
    both = stack.enter_context(hosts.two_hosts())

    def start_one(number: int, run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        host, nodes = both[number], min(processes, NODES)
        place = {"NNODES": str(nodes), "NODE_RANK": str(number), "HEAD": both[0].address, "LOCAL_ADDR": host.address}
        place |= {"GLOO_SOCKET_IFNAME": LINK, "HEAD_TIMEOUT": str(HEAD_TIMEOUT), "JOB_ID": run_dir.parent.name}
        return launch(project, folder, (), place, before=host.command())(run_dir, processes // nodes, options)

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        machines = range(min(processes, NODES))
        return HostsJob(run_dir, [start_one(number, run_dir, processes, options) for number in machines])

    return start, Surroundings(link=HostLink(both))


@dataclass
class SlurmJob(Job):
    """A job in the queue, also while it waits there."""

    run_dir: Path
    cluster: slurm.Cluster
    id: int
    printed: Path
    mark: str
    ended: int | None = None
    looked: float = 0.0  # time.monotonic()

    def launchers(self) -> list[psutil.Process]:
        """Return the shell that runs launch.sh."""
        return [each for each in self.processes() if any("slurm_script" in word for word in command_of(each))]

    def code(self) -> int | None:
        """Return that of the shell, once Slurm does not start it any more."""
        if self.ended is None and time.monotonic() > self.looked + LOOKS_EVERY:
            job, self.looked = self.cluster.job(self.id), time.monotonic()
            if job.state in slurm.ENDED:
                lost = LOST if job.state == "NODE_FAIL" else job.exit_code
                self.ended = 128 + job.signal if job.signal else lost
        return self.ended

    def output(self) -> str:
        return self.printed.read_text(errors="replace") if self.printed.exists() else ""

    def end(self) -> None:
        """Take it from the queue, too."""
        self.cluster.run("scancel", "--signal=KILL", "--full", str(self.id), check=False)
        self.cluster.run("scancel", str(self.id), check=False)
        super().end()


@dataclass
class SlurmNodes(Nodes):
    cluster: slurm.Cluster

    def take(self, job: Job, victim: float) -> None:
        """Submit a job that goes first, and is short."""
        if not job.ranks():
            raise NoVictim
        self.cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")


def of_slurm(project: Path, folder: Path, _: ExitStack, request: pytest.FixtureRequest) -> tuple[Starter, Surroundings]:
    cluster: slurm.Cluster = request.getfixturevalue("slurm_cluster")

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        mark = uuid.uuid4().hex
        nodes, printed = min(processes, len(OF_SLURM)), folder / f"output-{mark}.log"
        wanted = [f"--nodes={nodes}", f"--ntasks-per-node={processes // nodes}", f"--output={printed}"]
        variables = {MARK: mark, "OMP_NUM_THREADS": "1"}
        job = cluster.launch(project, "--run-dir", str(run_dir), *options, request=wanted, **variables)
        return SlurmJob(run_dir, cluster, job, printed, mark)

    return start, Surroundings(machines=SlurmNodes(cluster))


class RayJob(LaunchedJob):
    """A job that launch.sh has submitted, and follows: its processes are Ray's, and have no mark."""

    def processes(self) -> list[psutil.Process]:
        """Return those that have its run directory in their command line."""
        run_dir = str(self.run_dir)
        return [each for each in psutil.process_iter() if any(run_dir in word for word in command_of(each))]


@dataclass
class RayNodes:
    """The nodes of the cluster, but for the first one, without which there is none."""

    cluster: RayCluster

    def take(self, job: Job, victim: float) -> None:
        if not job.ranks() or len(self.cluster.raylets) < NODES:
            raise NoVictim
        self.cluster.lose_node()

    def restore(self) -> None:
        self.cluster.add_nodes(NODES)


def of_ray(project: Path, folder: Path, stack: ExitStack, _: object) -> tuple[Starter, Surroundings]:
    cluster = RayCluster()
    stack.callback(cluster.shut_down)
    cluster.add_nodes(NODES)

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        nodes = min(processes, NODES)
        variables = cluster.variables | {"RAY_ADDRESS": cluster.address, "JOB_ID": uuid.uuid4().hex}
        job = launch(project, folder, [str(nodes)], variables)(run_dir, processes // nodes, options)
        return RayJob(run_dir, job.process, job.printed, job.mark)

    return start, Surroundings(machines=RayNodes(cluster))


class MarkedJobSet(kubernetes.JobSet):
    mark: str
    codes: Sequence[int | None] = ()  # of the pods, when one has failed

    def variables(self, number: int) -> dict[str, str]:
        return super().variables(number) | {MARK: self.mark, "HEAD_TIMEOUT": str(HEAD_TIMEOUT)}

    def wait(self) -> list[int | None]:
        self.codes = super().wait()
        return self.codes


@dataclass
class PodsJob(Job):
    run_dir: Path
    jobset: MarkedJobSet
    ended: int | None = None
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mark = self.jobset.mark
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

    def code(self) -> int | None:
        """Return that of the job, once its pods are not started any more."""
        if self.errors:
            raise self.errors[0]
        return self.ended

    def output(self) -> str:
        return self.jobset.output

    def end(self) -> None:
        """Let no pod come after these."""
        while self.thread.is_alive():
            self.jobset.restarts = self.jobset.spec["failurePolicy"]["maxRestarts"]
            super().end()
            time.sleep(0.1)


class PodNodes(Nodes):
    """The nodes of a job, each of which can lose all that runs there."""

    def take(self, job: Job, victim: float) -> None:
        assert isinstance(job, PodsJob)
        pods = job.jobset.pods
        if not job.ranks():
            raise NoVictim
        try:
            [first] = psutil.Process(pods[int(victim * len(pods))].process.pid).children()
        except (psutil.NoSuchProcess, ValueError, IndexError) as error:
            raise NoVictim from error
        first.send_signal(signal.SIGKILL)


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


def of_kubernetes(project: Path, folder: Path, stack: ExitStack, _: object) -> tuple[Starter, Surroundings]:
    """A stand-in for JobSet starts those jobs anew that fail."""
    if reason := kubernetes.missing() or hosts.missing("unshare") or hosts.missing("nft"):
        pytest.skip(reason)
    both = stack.enter_context(hosts.two_hosts())

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        name, nodes = f"c{uuid.uuid4().hex[:20]}", both[:processes]
        cluster = kubernetes.Cluster(folder / name)
        command = ["./launch.sh", "--run-dir", str(run_dir), *options]
        cluster.submit(edited(project, len(nodes), processes // len(nodes)), *command, NAME=name)
        jobset = MarkedJobSet(cluster, nodes, stack)
        jobset.mark = name
        jobset.start()
        return PodsJob(run_dir, jobset)

    return start, Surroundings(link=HostLink(both), machines=PodNodes())
