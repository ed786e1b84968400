"""The MPI launchers of this machine, and how to run them as root on two cores.

Debian installs Open MPI and MPICH side by side and gives `mpirun` to one of them: both are looked up by their own
names first, and every find is asked what it is.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import PATH, write_program

# Open MPI refuses root and more ranks than cores, and ties each rank to one core.
OPENMPI_ARGUMENTS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


def openmpi_mpirun() -> str | None:
    # Version 4 calls itself Open MPI only under the very name of mpirun.
    return _find(("mpirun.openmpi", "mpirun"), ("Open MPI", "OpenRTE"))


def mpich_mpirun() -> str | None:
    return _find(("mpirun.mpich", "mpiexec.hydra", "mpirun"), ("HYDRA",))


def openmpi_command(processes: int, folder: Path) -> list[str]:
    """Return Open MPI's command line up to the program. It keeps its files in the folder, and leaves them if killed."""
    command = [openmpi_mpirun() or "mpirun.openmpi", *OPENMPI_ARGUMENTS, "--mca", "orte_tmpdir_base", str(folder)]
    return [*command, "-np", str(processes)]


def environment(mpirun: str, folder: Path) -> dict[str, str]:
    """Return variables with which `mpirun` is the one of Open MPI or MPICH, and also runs as root."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    if mpirun == "Open MPI":
        (programs / "mpirun").symlink_to(openmpi_mpirun() or "")  # it goes by its name
    else:
        write_program(programs / "mpirun", f'exec {mpich_mpirun()} "$@"')  # it goes by its folder
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # As many ranks as this on any machine.
    return os.environ | root | {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PATH": f"{programs}:{PATH}"}


@cache
def _find(names: tuple[str, ...], marks: tuple[str, ...]) -> str | None:
    for path in filter(None, map(shutil.which, names)):
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if any(mark in shown for mark in marks):
            return path
    return None


def _needs(found: str | None, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(found is None, reason=f"no launcher of {name} here: run tests/clusters/install.sh")


NEEDS_OPENMPI, NEEDS_MPICH = _needs(openmpi_mpirun(), "Open MPI"), _needs(mpich_mpirun(), "MPICH")
EACH_MPIRUN = [pytest.param("Open MPI", marks=NEEDS_OPENMPI), pytest.param("MPICH", marks=NEEDS_MPICH)]
