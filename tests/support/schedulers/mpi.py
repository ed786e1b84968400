"""The MPI launchers of this machine, and how to run them as root on two cores.

Debian installs Open MPI and MPICH side by side and gives ``mpirun`` to one of them:
both are looked up by their own names first, and every find is asked what it is.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# Open MPI refuses root and more ranks than cores, and ties each rank to one core.
OPENMPI_ARGUMENTS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


def openmpi_mpirun() -> str | None:
    """Return the path of Open MPI's launcher, or None if there is none."""
    # Version 4 calls itself Open MPI only under the very name of mpirun.
    return _find(("mpirun.openmpi", "mpirun"), ("Open MPI", "OpenRTE"))


def mpich_mpirun() -> str | None:
    """Return the path of MPICH's launcher, Hydra, or None if there is none."""
    return _find(("mpirun.mpich", "mpiexec.hydra", "mpirun"), ("HYDRA",))


def missing_openmpi() -> str | None:
    """Return why one cannot use Open MPI here, or None if they can."""
    return None if openmpi_mpirun() else _reason("Open MPI")


def missing_mpich() -> str | None:
    """Return why one cannot use MPICH here, or None if they can."""
    return None if mpich_mpirun() else _reason("MPICH")


def openmpi_command(processes: int, folder: Path) -> list[str]:
    """Return Open MPI's command line up to the program, for ``processes`` ranks.

    It keeps its files in ``folder``: it leaves them behind if it is killed.
    """
    command = [openmpi_mpirun() or "mpirun.openmpi", *OPENMPI_ARGUMENTS]
    command += ["--mca", "orte_tmpdir_base", str(folder)]
    return [*command, "-np", str(processes)]


def mpich_command(processes: int) -> list[str]:
    """Return MPICH's command line up to the program, for ``processes`` ranks.

    Unlike Open MPI, it minds neither root nor few cores, and ties ranks to none.
    """
    return [mpich_mpirun() or "mpirun.mpich", "-np", str(processes)]


def _find(names: tuple[str, ...], marks: tuple[str, ...]) -> str | None:
    """Return the first of ``names`` whose version text has one of ``marks``."""
    for path in filter(None, map(shutil.which, names)):
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if any(mark in shown for mark in marks):
            return path
    return None


def _reason(name: str) -> str:
    """Return the reason to skip a test for want of the launcher of ``name``."""
    return f"no launcher of {name} here: run tests/clusters/install.sh"
