"""Faults that nobody chose, at any moment and together, are survived: 50 of them, on ranks that are forked."""

from pathlib import Path

import pytest

from generator.chaos.disk import failing_disk
from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from tests.chaos import befall, forked
from tests.conftest import Render
from tests.pace import seconds

FAULTS = 25  # of each part


@pytest.fixture
def needs(tmp_path: Path) -> list[Need]:
    """What there is beside ranks: a disk that fails, if FUSE is to be had."""
    try:
        with failing_disk(tmp_path / "trial"):
            return [Need.DISK]
    except OSError:
        return []


@pytest.mark.parametrize("seed", [0, 1000])
def test_what_nobody_chose_is_survived(seed: int, needs: list[Need], project: Render, tmp_path: Path) -> None:
    place = project(logging="csv")
    kinds = possible_faults(*needs)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=lambda: seconds(2))
    befall(nemesis, FAULTS, seed)
