"""What a forked process does to be a rank of a project, as if a launcher had started it from a shell."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from generator.check.train.environments import Place
from generator.render.processes import die_with_parent

# Variables that tell the process that ranks are forked from what to prepare.
MODULES = "DDP_TEMPLATE_MODULES"  # path of a file that will name the modules to import
ALL_DATA = "DDP_TEMPLATE_ALL_DATA"  # 1: programs get all of their data

FORKING_PROCESS = os.getpid()  # in a rank, which has this module from the process that it was forked from


@dataclass(frozen=True)
class Scene:
    """Where a program runs, and with what."""

    project: Path
    options: list[str]
    env: dict[str, str]  # all of it
    place: Place
    run_dir: Path | None = None  # to look at when the program has ended well; None: nobody wants to know
    logger: str = ""
    one_writes: bool = True  # only rank 0 can write files


@dataclass(frozen=True)
class Wires:
    """How a rank tells what it does."""

    output: Connection  # takes standard output and standard error
    report: Connection  # takes its process number at the start and its Observation at the end


def connect(wires: Wires, *, forks: bool = False) -> None:
    """Write to the wires from here on, tell who this is, and die with the parent."""
    if not forks:
        # The forking process ends when nobody holds this any more: then it ends with the command, and this one with it.
        untyped: Any = forkserver
        os.close(untyped._forkserver._forkserver_alive_fd)
    die_with_parent()
    if os.getppid() != FORKING_PROCESS:
        os._exit(1)  # it died before it could take this process with it
    for standard in (1, 2):
        os.dup2(wires.output.fileno(), standard)
    wires.report.send(os.getpid())


def enter(scene: Scene, wires: Wires, *, forks: bool = False) -> None:
    """Take the environment, folder, output and command line that a shell would give."""
    connect(wires, forks=forks)
    multiprocessing.set_start_method(None, force=True)  # of its own processes, such as those that load data
    os.environ.clear()
    os.environ.update(scene.env | scene.place.env)
    os.chdir(scene.project)
    sys.argv = ["train.py", *scene.place.arguments, *scene.options]
    sys.path.insert(0, str(scene.project))


def do_task(function: Callable[..., Any], arguments: tuple[Any, ...], wires: Wires) -> None:
    """Call a function, and report what it gives."""
    connect(wires)
    wires.report.send(function(*arguments))


def run_program(scene: Scene) -> None:
    """Run train.py as a script, from its bytecode where that lies ready (see bytecode.py)."""
    path = str(scene.project / "train.py")
    code: Any = SourceFileLoader("__main__", path).get_code("__main__")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(code, vars(main))


def be_rank(rank: int, scene: Scene, wires: Wires) -> None:
    """Be a rank that a launcher has started."""
    enter(scene, wires)
    with Watch(rank, scene, wires):
        run_program(scene)


class Watch:
    """As a context manager: watch what this rank does, keep all but rank 0 from writing files, and report it."""

    def __init__(self, rank: int, scene: Scene, wires: Wires) -> None:
        self.rank = rank
        self.scene = scene
        self.wires = wires

    def __enter__(self) -> None:
        from generator.check.train.hooks import observe

        sys.dont_write_bytecode = self.rank > 0
        if self.rank > 0 and self.scene.one_writes:
            # Whoever writes a byte to a file gets the error "File too large".
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        self.seen = observe()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from generator.check.train.judgement import look_at

        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        if self.rank == 0 and self.scene.run_dir and ended_well:
            self.seen.left = look_at(self.scene.run_dir, self.scene.logger)
        self.wires.report.send(self.seen)


def be_spawner(scene: Scene, wires: Wires, wires_of_ranks: list[Wires]) -> None:
    """Be a program that starts its ranks itself, by torch.multiprocessing.spawn."""
    from torch import multiprocessing as torch_multiprocessing

    enter(scene, wires, forks=True)
    # The process that this one was forked from forks the ranks, too: it need not be started again.
    untyped: Any = forkserver
    untyped._forkserver.ensure_running = lambda: None

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False) -> Any:
        # Like "spawn" this starts from a process that has not run the program, and pickles what it is given.
        target = Spawned(fn, scene, wires_of_ranks)
        return torch_multiprocessing.start_processes(target, args, nprocs, join, daemon, start_method="forkserver")

    vars(torch_multiprocessing)["spawn"] = spawn
    run_program(scene)


@dataclass(frozen=True)
class Spawned:
    """Stands for the function that the program spawns; a forked process has no shell's environment of its own."""

    fn: Any
    scene: Scene
    wires: list[Wires]

    def __call__(self, rank: int, *args: Any) -> None:
        enter(self.scene, self.wires[rank])
        with Watch(rank, self.scene, self.wires[rank]):
            self.fn(rank, *args)
