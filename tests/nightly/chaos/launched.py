"""What befalls runs that the launch.sh of a project starts on this machine."""

from collections import Counter
from pathlib import Path

from generator.chaos.clock import build_clock
from generator.chaos.faults import Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import Nemesis
from generator.check.launchers import OPEN_MPI
from generator.cli.chaos import WORDS
from tests.chaos import befall
from tests.conftest import Render

from .conftest import slowness

FAULTS = 125


def befall_launched(launcher: str, project: Render, folder: Path) -> Counter[str]:
    """Let faults befall the project of a launcher. Returns how often each kind did."""
    place, clock = project(launcher=launcher, logging="csv"), build_clock(folder)
    start = launch(place, folder, WORDS[launcher], OPEN_MPI | clock.variables)
    kinds = possible_faults(Need.LAUNCHER, Need.TERMINAL, Need.DISK, Need.CLOCK)
    return befall(Nemesis(place, start, "csv", folder, kinds, clock, slowness=slowness), FAULTS, seed=0)
