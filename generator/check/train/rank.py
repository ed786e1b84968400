"""What a forked process does to be a rank of a project, as if a launcher had started it from a shell."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from generator.check.train.environments import Place
from generator.render.scratch import die_with_parent

# Variables that tell the process that ranks are forked from what to prepare.
MODULES = "DDP_TEMPLATE_MODULES"  # path of a file that will name the modules to import
ALL_DATA = "DDP_TEMPLATE_ALL_DATA"  # 1: programs get all of their data

SERVER: Any = vars(forkserver)["_forkserver"]  # Python's handle of the process that ranks are forked from
FORKING_PROCESS = os.getpid()  # in a rank, which has this module from the process that it was forked from


@dataclass(frozen=True)
class Run:
    project: Path
    launcher: str
    options: list[str]
    env: dict[str, str]  # all variables except those of the launcher
    run_dir: Path | None = None  # to read after a success
    logger: str = ""  # whose records to read there
    world_size: int = 2
    one_writes: bool = True  # only rank 0 can write files; loader workers do not allow this: their semaphores are files
    deadline: float = 60.0  # after which all of its processes are killed (seconds)


@dataclass(frozen=True)
class Pipes:
    output: Connection  # takes standard output and standard error
    report: Connection  # takes its process number at the start and its RankTrace at the end


def connect(wires: Pipes, *, forks: bool = False) -> None:
    """Send output and process number to the wires, and die with the parent."""
    if not forks:
        # The forking process ends when nobody holds this descriptor: with the command. This rank then ends too.
        os.close(SERVER._forkserver_alive_fd)
    die_with_parent()
    if os.getppid() != FORKING_PROCESS:
        os._exit(1)  # the parent died before die_with_parent()
    for standard in (1, 2):
        os.dup2(wires.output.fileno(), standard)
    wires.report.send(os.getpid())


def enter(run: Run, place: Place, wires: Pipes, *, forks: bool = False) -> None:
    """Set environment, folder, output and command line as a shell would."""
    connect(wires, forks=forks)
    multiprocessing.set_start_method(None, force=True)  # for its children, such as loader workers
    os.environ.clear()
    os.environ.update(run.env | place.env)
    os.chdir(run.project)
    sys.argv = ["train.py", *place.arguments, *run.options]
    sys.path.insert(0, str(run.project))


def run_program(project: Path) -> None:
    """Run train.py as a script."""
    path = str(project / "train.py")
    code: Any = SourceFileLoader("__main__", path).get_code("__main__")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(code, vars(main))


def run_rank(rank: int, run: Run, place: Place, wires: Pipes) -> None:
    enter(run, place, wires)
    with watched(rank, run, wires):
        run_program(run.project)


@contextmanager
def watched(rank: int, run: Run, wires: Pipes) -> Iterator[None]:
    """Trace this rank, let only rank 0 write files, and report the trace."""
    from generator.check.train.hooks import trace
    from generator.check.train.verification import read_output

    unlimited, ended_well = resource.RLIM_INFINITY, False
    shards = any(run.project.glob("*/runtime/sharding.py"))  # which each rank writes
    if rank > 0 and run.one_writes and not shards:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited))  # a write fails with "File too large"
    seen = trace()
    try:
        yield
        ended_well = True
    except SystemExit as error:
        ended_well = not error.code
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
        if rank == 0 and run.run_dir and ended_well:
            seen.left = read_output(run.run_dir, run.logger)
        wires.report.send(seen)


def run_spawner(run: Run, place: Place, wires: Pipes, wires_of_ranks: list[Pipes]) -> None:
    """Run a program that starts its ranks itself, by torch.multiprocessing.spawn."""
    from torch import multiprocessing as torch_multiprocessing

    enter(run, place, wires, forks=True)
    # The forking process also forks these ranks: do not start another one.
    SERVER.ensure_running = lambda: None

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False) -> Any:
        # As with "spawn", ranks start from a process that has not run the program, and arguments are pickled. The
        # environment is the one that the program has changed.
        every = (fn, run, replace(place, env=dict(os.environ)), wires_of_ranks, args)
        start = torch_multiprocessing.start_processes
        return start(run_spawned_rank, every, nprocs, join, daemon, start_method="forkserver")

    vars(torch_multiprocessing)["spawn"] = spawn
    run_program(run.project)


def run_spawned_rank(rank: int, fn: Any, run: Run, place: Place, wires: list[Pipes], args: tuple[Any, ...]) -> None:
    """Run a rank that the program has started, with the environment that a spawned process would have."""
    enter(run, place, wires[rank])
    with watched(rank, run, wires[rank]):
        fn(rank, *args)
