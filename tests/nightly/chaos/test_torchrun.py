"""Ranks that torchrun starts survive what nobody chose."""

from pathlib import Path

from tests.conftest import Render

from .conftest import Note
from .launched import befall_launched


def test_faults_that_nobody_chose_are_survived(project: Render, tmp_path: Path, note: Note) -> None:
    note("torchrun", befall_launched("torchrun", project, tmp_path))
