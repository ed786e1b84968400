"""Ranks that Open MPI starts survive what nobody chose."""

from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.schedulers import mpi

from .conftest import Note
from .launched import befall_launched


@pytest.mark.skipif(not mpi.openmpi_mpirun(), reason="there is no Open MPI")
def test_faults_that_nobody_chose_are_survived(project: Render, tmp_path: Path, note: Note) -> None:
    note("mpirun", befall_launched("mpirun", project, tmp_path))
