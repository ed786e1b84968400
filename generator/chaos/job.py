"""A launched run: the roles of its processes, its exit code and its output."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from generator.answers.combinations import SelectionError
from generator.check.train.training_case import WANDB

T = TypeVar("T")
MARK = "DDP_CHAOS"  # the variable by which the processes of a job are found
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # variables of launchers, for their ranks
TRACKING = ("WANDB_", "MLFLOW_")  # prefixes of the variables that say where records go
LOOKS_FOR_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


class Job(ABC):
    """A launched run. It stays one job if its launcher restarts it after a failure."""

    run_dir: Path
    mark: str  # in the environment of its processes, which children inherit

    @abstractmethod
    def launchers(self) -> list[psutil.Process]:
        """Return the processes that start ranks, if any: one on each machine."""

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks: processes that run train.py and whose parent does not, unless the parent spawns ranks."""
        training = {process.pid: process for process in self.processes() if _trains(process)}
        spawning = {pid for pid, process in training.items() if "--nproc" in command_of(process)}
        parents = training.keys() - spawning
        found = [each for pid, each in training.items() if pid in parents and asked(each.ppid, None) not in parents]
        return sorted(found, key=lambda process: process.pid)

    def number_of(self, process: psutil.Process) -> int | None:
        """Return the rank of a process, or the rank that started it; None if unknown."""
        variables = asked(process.environ, dict[str, str]())
        return next((int(variables[name]) for name in RANK if variables.get(name, "").isdecimal()), None)

    def processes(self) -> list[psutil.Process]:
        """Return all live processes, without zombies."""
        zombie, nothing = psutil.STATUS_ZOMBIE, dict[str, str]()
        marked = [each for each in psutil.process_iter() if asked(each.environ, nothing).get(MARK) == self.mark]
        return [process for process in marked if asked(process.status, zombie) != zombie]

    @abstractmethod
    def code(self) -> int | None:
        """Return the exit code as a shell reports it, or None while the job runs."""

    @abstractmethod
    def output(self) -> str:
        """Return the output of the job."""

    def end(self) -> None:
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)


Starter = Callable[[Path, int, Sequence[str]], Job]  # takes the run directory, the number of processes and the options


@dataclass
class LaunchedJob(Job):
    """A run on this machine, started by the launch.sh of its project, which becomes its launcher."""

    run_dir: Path
    process: subprocess.Popen[bytes]
    printed: Path
    mark: str

    def launchers(self) -> list[psutil.Process]:
        return [process for process in self.processes() if process.pid == self.process.pid]

    def code(self) -> int | None:
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def output(self) -> str:
        return self.printed.read_text(errors="replace")


def asked(question: Callable[[], T], otherwise: T) -> T:
    """Return the answer about a process, or `otherwise` if the process is gone."""
    try:
        return question()
    except psutil.Error:
        return otherwise


def command_of(process: psutil.Process) -> list[str]:
    return asked(process.cmdline, list[str]())


def loader_workers(rank: psutil.Process) -> list[psutil.Process]:
    """Return the loader workers of a rank, which the rank has forked or spawned, or its fork server has forked."""
    found: list[psutil.Process] = []
    own = command_of(rank)
    for child in asked(rank.children, list[psutil.Process]()):
        if command_of(child) == own or _trains(child):
            found.append(child)
        elif any("multiprocessing.forkserver" in word for word in command_of(child)):
            found += asked(child.children, [])
    return found


def _trains(process: psutil.Process) -> bool:
    """Return whether a process runs train.py, or was spawned from it by Python's multiprocessing."""
    program, *words = command_of(process) or [""]
    if not Path(program).name.startswith("python"):
        return False
    script = next((word for word in words if word not in ("-u", "-X", "-P")), "")
    return Path(script).name == "train.py" or any("spawn_main" in word for word in words)


def folder_of_python(project: Path) -> Path:
    """Return the folder of the first Python that has torch: the project's, the active one, PATH's, or this one."""
    active, found = os.environ.get("VIRTUAL_ENV"), shutil.which("python")
    folders = [project / ".venv" / "bin", *([Path(active, "bin")] if active else [])]
    folders += [*([Path(found).parent] if found else []), Path(sys.executable).parent]
    for folder in folders:
        python = folder / "python"
        if python.exists() and subprocess.run([python, "-c", LOOKS_FOR_TORCH], cwd=project).returncode == 0:
            return folder
    raise SelectionError(f"no Python here has torch: make {project}/.venv as its README.md says, or activate one")


def environment() -> dict[str, str]:
    """Return the user's environment without the variables that send records to the user's own trackers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TRACKING)} | WANDB


def launch(
    project: Path, folder: Path, words: Sequence[str], variables: Mapping[str, str], before: Sequence[str] = ()
) -> Callable[[Path, int, Sequence[str]], LaunchedJob]:
    """Return a function that starts a project by its launch.sh, after a command, and with words before the options."""
    path = f"{folder_of_python(project)}:{os.environ['PATH']}"

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> LaunchedJob:
        mark = uuid.uuid4().hex
        printed = folder / f"output-{mark}.log"
        number = {"NPROC_PER_NODE": str(processes), "NPROC": str(processes), "OMP_NUM_THREADS": "1"}
        first = [word.format(processes=processes) for word in words]
        with open(printed, "w") as output:
            process = subprocess.Popen(
                [*before, "./launch.sh", *first, "--run-dir", str(run_dir), *options],
                cwd=project,
                env={**environment(), **number, "PATH": path, MARK: mark, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LaunchedJob(run_dir, process, printed, mark)

    return start
