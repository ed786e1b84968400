"""What a logger has recorded is there once and right, whatever has befallen the run."""

from pathlib import Path

import pytest

from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from tests.chaos import befall, forked
from tests.conftest import Render

from .conftest import Note, slowness

FAULTS = 100


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "mlflow", "wandb"])
def test_every_record_is_there_once(
    logger: str, project: Render, tmp_path: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    place = project(logging=logger)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), logger, tmp_path, kinds, slowness=slowness)
    note(f"forked ranks, {logger}", befall(nemesis, FAULTS, seed=500))
