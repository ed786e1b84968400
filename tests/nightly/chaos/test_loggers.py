"""What a logger has recorded is there once and right, whatever has befallen the run."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from generator.check.train.records import History, read_mlflow
from tests.conftest import Render
from tests.nightly.faults.test_tracking_server import mlflow_server
from tests.support import hosts
from tests.support.chaos import befall, forked

from .conftest import Note, slowness

FAULTS = 50
GATE = "add table inet {name}; add chain inet {name} out {{ type filter hook output priority 0; }}; "
STATES = {"gone": "reject with tcp reset", "silent": "drop"}


@dataclass
class Server:
    """A server of MLflow on this machine, which packets may not reach."""

    port: int
    folder: Path

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

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
def server(free_port: int, tmp_path: Path) -> Iterator[Server]:
    """A server that takes metrics of any run."""
    if reason := hosts.missing("nft"):
        pytest.skip(reason)
    server = Server(free_port, tmp_path / "server")
    server.folder.mkdir()
    with mlflow_server(server.folder, free_port):
        yield server
        server.set_state("sound")


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "mlflow", "wandb"])
def test_every_record_is_there_once(
    logger: str, project: Render, tmp_path: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = project(logging=logger)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), logger, tmp_path, kinds, slowness=slowness)
    note(f"forked ranks, {logger}", befall(nemesis, FAULTS, seed=500))


def test_a_server_may_go_and_come(
    server: Server, project: Render, tmp_path: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    place, start = project(logging="mlflow"), forked(project(logging="mlflow"), tmp_path)
    kinds = possible_faults(Need.SERVER)
    nemesis = Nemesis(place, start, "mlflow", tmp_path, kinds, server=server, read=server.read, slowness=slowness)
    note("forked ranks, server of MLflow", befall(nemesis, FAULTS, seed=600))
