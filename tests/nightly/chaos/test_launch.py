"""Ranks that torch.distributed.launch starts survive what nobody chose."""

from pathlib import Path

from tests.conftest import Render

from .conftest import Note
from .launched import befall_launched


def test_faults_that_nobody_chose_are_survived(project: Render, tmp_path: Path, note: Note) -> None:
    note("launch", befall_launched("launch", project, tmp_path))
