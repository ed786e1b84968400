"""What befalls runs that the launch.sh of a project starts on this machine."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import Nemesis
from generator.check.launchers import OPEN_MPI
from generator.cli.chaos import WORDS, find_surroundings
from tests.conftest import Render
from tests.support.chaos import befall

from .conftest import slowness

FAULTS = 125
OF_BATCHES = 25  # further ones, which keep batches from coming, and some that come together with them
WITH_THEM = ["kill a rank", "kill a loader worker", "stop", "freeze a rank for a moment"]


def befall_launched(launcher: str, project: Render, folder: Path) -> Counter[str]:
    """Let faults befall the project of a launcher. Returns how often each kind did."""
    place, usual = project(launcher=launcher, logging="csv"), {Need.DISK, Need.CLOCK}
    with ExitStack() as stack:
        around, needs = find_surroundings(folder, stack)
        assert usual <= {*needs}
        start = launch(place, folder, WORDS[launcher], {**OPEN_MPI, **around.variables}, around.before)
        kinds = possible_faults(Need.LAUNCHER, Need.TERMINAL, *usual)
        nemesis = Nemesis(place, start, "csv", folder, kinds, around.clock, slowness=slowness)
        happened = befall(nemesis, FAULTS, seed=0)
        nemesis.data, nemesis.shm, nemesis.quota = around.data, around.shm, around.quota
        nemesis.kinds = [*WITH_THEM, *(name for name, kind in KINDS.items() if kind.need in {*needs} - usual)]
        return happened + befall(nemesis, OF_BATCHES, seed=2000)
