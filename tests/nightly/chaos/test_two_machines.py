"""Two machines survive what nobody chose, also of the link between them."""

from pathlib import Path

import pytest

from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from tests.conftest import Render
from tests.support import hosts
from tests.support.chaos import befall

from .conftest import Note, slowness
from .on_hosts import HostLink, on_hosts

FAULTS = 100


def test_faults_that_nobody_chose_are_survived(project: Render, tmp_path: Path, note: Note) -> None:
    if reason := hosts.missing("nft"):
        pytest.skip(reason)
    place = project(logging="csv")
    kinds = possible_faults(Need.LAUNCHER, Need.TERMINAL, Need.DISK, Need.LINK)
    with hosts.two_hosts() as both:
        start, link = on_hosts(place, tmp_path, both), HostLink(both)
        nemesis = Nemesis(place, start, "csv", tmp_path, kinds, link=link, slowness=slowness)
        note("torchrun on two machines", befall(nemesis, FAULTS, seed=800))
