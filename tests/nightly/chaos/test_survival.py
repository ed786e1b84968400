"""Faults that nobody chose are survived with each launcher, on clusters, with a stream, and with each logger."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import LOST, Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import Nemesis
from generator.chaos.surroundings import Surroundings
from generator.check.launchers import OPEN_MPI
from generator.check.train.records import History, read_mlflow
from generator.cli.chaos import WORDS, find_surroundings
from tests.conftest import Measured, Render
from tests.nightly.faults.test_tracking_server import mlflow_server
from tests.support import hosts
from tests.support.chaos import befall, forked, streaming
from tests.support.processes import scaled
from tests.support.schedulers import mpi

from . import clusters

STEPS = 120  # of a run
OF_LAUNCHER = 40  # faults
OF_BATCHES = 10  # further ones, which keep batches from coming, and some that come together with them
WITH_THEM = ["kill a rank", "kill a loader worker", "stop", "freeze a rank for a moment"]
OF_LOGGER = 20
GATE = "add table inet {name}; add chain inet {name} out {{ type filter hook output priority 0; }}; "
STATES = {"gone": "reject with tcp reset", "silent": "drop"}
Note = Callable[[str, Counter[str]], None]
NO_MPI = pytest.mark.skipif(not mpi.openmpi_mpirun(), reason="there is no Open MPI")
LAUNCHERS = [
    "torchrun",
    "spawn",
    "launch",
    pytest.param("mpirun", marks=NO_MPI),
    "torchrun, a stream",
    "torchrun, shards",
]


def slowness() -> float:
    return scaled(2)


@pytest.fixture
def note(measured: Measured) -> Note:
    def note(to: str, happened: Counter[str]) -> None:
        for kind, times in sorted(happened.items()):
            measured("chaos", f"{to}: {kind}", times)

    return note


@pytest.mark.parametrize("case", LAUNCHERS)
def test_faults_that_nobody_chose_are_survived(case: str, own_project: Render, tmp_path: Path, note: Note) -> None:
    """Each launcher has other seeds, and so have streams and shards."""
    launcher, _, further = case.partition(", ")
    parallel = "fsdp" if further == "shards" else "ddp"
    place, usual = own_project(launcher=launcher, logging="csv", parallel=parallel), {Need.DISK, Need.CLOCK}
    seed = {"a stream": 404, "shards": 505}[further] if further else 100 * [*WORDS].index(launcher)
    with ExitStack() as stack:
        around, needs = find_surroundings(tmp_path, stack)
        assert usual <= {*needs}
        start = launch(place, tmp_path, WORDS[launcher], {**OPEN_MPI, **around.variables}, around.before)
        kinds = possible_faults(Need.LAUNCHER, Need.TERMINAL, *usual)
        of_clock = Surroundings(clock=around.clock)
        nemesis = Nemesis(place, start, "csv", tmp_path, kinds, of_clock, slowness=slowness, steps=STEPS)
        nemesis.options = streaming(place) if further == "a stream" else ()
        happened = befall(nemesis, OF_LAUNCHER, seed)
        nemesis.around = around
        nemesis.kinds = [*WITH_THEM, *(name for name, kind in KINDS.items() if kind.need in {*needs} - usual)]
        note(case, happened + befall(nemesis, OF_BATCHES, seed + 2000))


class OnCluster(NamedTuple):
    launcher: str
    make: clusters.Make
    faults: int
    seed: int
    needs: Sequence[Need]
    hides: Sequence[int] = ()
    without: str = ""  # a kind of fault


# srun ends with the highest code of all tasks: also of one that it ends itself, before that task listens to signals or
# when it hangs, and of those that only miss the one which failed. Pods that never meet start again and again.
OF_SRUN = [LOST, 128 + signal.SIGTERM, 128 + signal.SIGKILL]
AT_LINK = (Need.LAUNCHER, Need.DISK, Need.LINK)
CLUSTERS = {
    "torchrun on two machines": OnCluster("torchrun", clusters.on_two_hosts, 30, 800, (*AT_LINK, Need.TERMINAL)),
    "Slurm on two nodes": OnCluster("slurm", clusters.of_slurm, 25, 900, (Need.LAUNCHER, Need.MACHINES), OF_SRUN),
    "Kubernetes on two nodes": OnCluster(
        "kubernetes", clusters.of_kubernetes, 20, 1124, (*AT_LINK, Need.MACHINES), without="link cut for good"
    ),
    "Ray on two nodes": OnCluster("ray", clusters.of_ray, 15, 1000, (Need.DISK, Need.MACHINES)),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_faults_of_a_cluster_are_survived(
    name: str, own_project: Render, tmp_path: Path, note: Note, request: pytest.FixtureRequest
) -> None:
    on = CLUSTERS[name]
    place = own_project(launcher=on.launcher, logging="csv")
    kinds = [kind for kind in possible_faults(*on.needs) if kind != on.without]
    with ExitStack() as stack:
        start, around = on.make(place, tmp_path, stack, request)
        nemesis = Nemesis(place, start, "csv", tmp_path, kinds, around, on.hides, slowness=slowness, steps=STEPS)
        note(name, befall(nemesis, on.faults, on.seed))


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "mlflow", "wandb"])
def test_every_record_is_there_once(
    logger: str, project: Render, tmp_path: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = project(logging=logger)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), logger, tmp_path, kinds, slowness=slowness, steps=STEPS)
    note(f"forked ranks, {logger}", befall(nemesis, OF_LOGGER, seed=500))


@dataclass
class Server:
    """A server of MLflow on this machine, which packets may not reach."""

    port: int
    folder: Path

    def set_state(self, state: str) -> None:
        """Be "sound", "gone" or "silent" from now on."""
        name = f"ddp_{os.getpid()}"
        subprocess.run(["nft", f"delete table inet {name}"], capture_output=True)  # if there is one
        if state in STATES:
            rule = f"add rule inet {name} out tcp dport {self.port} {STATES[state]}"
            subprocess.run(["nft", GATE.format(name=name) + rule], check=True)

    def read(self, run_dir: Path) -> History:
        """Read the records of the newest run that has the run directory."""
        return read_mlflow(self.folder, f"params.run_dir = '{run_dir}'")


@pytest.fixture
def server(free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    if reason := hosts.missing("nft"):
        pytest.skip(reason)
    server = Server(free_port, tmp_path / "server")
    server.folder.mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port}")
    with mlflow_server(server.folder, free_port):
        yield server
        server.set_state("sound")


def test_a_server_may_go_and_come(server: Server, project: Render, tmp_path: Path, note: Note) -> None:
    place, kinds, around = project(logging="mlflow"), possible_faults(Need.SERVER), Surroundings(server=server)
    nemesis = Nemesis(place, forked(place, tmp_path), "mlflow", tmp_path, kinds, around, read=server.read)
    nemesis.slowness, nemesis.steps = slowness, STEPS
    note("forked ranks, server of MLflow", befall(nemesis, OF_LOGGER, seed=600))
