"""A thousand faults that nobody chose, over the launchers and the loggers: none does more than it may."""

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from generator.chaos.clock import build_clock
from generator.chaos.faults import Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import Nemesis
from generator.cli.chaos import OPEN_MPI, WORDS
from generator.cli.main import app
from tests import hosts, mpi
from tests.chaos import befall, forked
from tests.chaos_on_hosts import HostLink, on_hosts
from tests.conftest import Measured, Render
from tests.pace import seconds
from tools.rewriting import Rewrite

EVERYTHING = (Need.LAUNCHER, Need.DISK, Need.CLOCK)
OF_LAUNCHER = 130  # faults
OF_LOGGER = 60
ON_HOSTS = 120
NEEDS_MPI = pytest.mark.skipif(not mpi.openmpi_mpirun(), reason="there is no Open MPI")
LAUNCHERS = ["torchrun", "launch", "spawn", pytest.param("mpirun", marks=NEEDS_MPI)]

Note = Callable[[str, Counter[str]], None]


@pytest.fixture
def note(measured: Measured) -> Note:
    """Note how often each kind of fault happened to something."""

    def note(to: str, happened: Counter[str]) -> None:
        for kind, times in sorted(happened.items()):
            measured("chaos", f"{to}: {kind}", times)

    return note


def slowness() -> float:
    """Return how much longer things may take on this machine, as busy as it is."""
    return seconds(2)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_nobody_chose_is_survived(launcher: str, project: Render, tmp_path: Path, note: Note) -> None:
    place, clock = project(launcher=launcher, logging="csv"), build_clock(tmp_path)
    start = launch(place, tmp_path, WORDS[launcher], OPEN_MPI | clock.variables)
    nemesis = Nemesis(place, start, "csv", tmp_path, possible_faults(*EVERYTHING), clock, slowness=slowness)
    note(launcher, befall(nemesis, OF_LAUNCHER, seed=0))


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "mlflow", "wandb"])
def test_every_record_is_there_once(
    logger: str, project: Render, tmp_path: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = project(logging=logger)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), logger, tmp_path, kinds, slowness=slowness)
    note(f"forked, {logger}", befall(nemesis, OF_LOGGER, seed=500))


@pytest.mark.skipif(bool(hosts.missing("nft")), reason="no network namespaces, or no nft")
def test_two_machines_survive_what_befalls_their_link(project: Render, tmp_path: Path, note: Note) -> None:
    place = project(logging="csv")
    kinds = possible_faults(Need.LAUNCHER, Need.DISK, Need.LINK)
    with hosts.two_hosts() as both:
        start, link = on_hosts(place, tmp_path, both), HostLink(both)
        nemesis = Nemesis(place, start, "csv", tmp_path, kinds, link=link, slowness=slowness)
        note("two machines", befall(nemesis, ON_HOSTS, seed=800))


@dataclass(frozen=True)
class Mistake:
    """An edit that breaks a project, and what the nemesis must say of it."""

    file: str  # below the package
    edit: Rewrite
    said: str


MISTAKES = {
    "an epoch begins anew after a resume": Mistake(
        "runtime/loading.py",
        Rewrite("self.sampler.set_epoch($EPOCH, skip=$SKIP)", "self.sampler.set_epoch($EPOCH, skip=0)"),
        "model is another than without faults",
    ),
    "what was recorded after the checkpoint stays": Mistake(
        "runtime/tracking.py",
        Rewrite("drop_rows_after(start_step, path)", "drop_rows_after(10**9, path)"),
        "is recorded more than once at step",
    ),
    "a signal ends the program": Mistake(
        "runtime/exits.py", Rewrite("signal.signal(number, self._remember)", "pass"), "no line that has the cause"
    ),
    "a checkpoint is written where the last one is": Mistake(
        "runtime/checkpoint.py",
        Rewrite('path = self.folder / f"step-{$STEP:08d}.pt"', 'path = self.folder / "step-00000005.pt"'),
        "steps are lost",
    ),
    "a full disk is no error of the user": Mistake(
        "runtime/storage.py", Rewrite("raise UserError($TEXT) from error", "raise", "whole_file"), "exit code 1"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, own_project: Render, tmp_path: Path) -> None:
    place, mistake = own_project(logging="csv"), MISTAKES[name]
    mistake.edit.apply(place / "ddp_project" / mistake.file)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=slowness)
    verdicts = nemesis.befall_until(OF_LOGGER, seed=0)
    wrong = next(verdict.wrong for verdict in verdicts if verdict.wrong)
    assert mistake.said in "\n".join(wrong)


def test_the_command_shows_how_to_repeat_what_fails(own_project: Render, tmp_path: Path) -> None:
    place = own_project(logging="csv")
    mistake = MISTAKES["an epoch begins anew after a resume"]
    mistake.edit.apply(place / "ddp_project" / mistake.file)
    failed = CliRunner().invoke(app, ["chaos", str(place), "--faults", "30"])
    assert failed.exit_code == 1, failed.output
    command = shlex.split(failed.stdout)
    assert command[:3] == ["ddp-template", "chaos", str(place)]
    again = CliRunner().invoke(app, command[1:])
    assert again.exit_code == 1, again.output
    assert mistake.said in again.output
