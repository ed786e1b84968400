"""Runs many small training runs quickly: one process imports torch, and every rank is forked from it.

The forking process has neither threads nor a process group. A single loop watches all ranks, since multiprocessing's
own bookkeeping is not safe for several threads.
"""

import functools
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from generator.check.train.environments import STARTS_ITS_RANKS, places
from generator.check.train.rank import ALL_DATA, MODULES, Scene, Wires, be_rank, be_spawner, do_task
from generator.render.processes import interrupts_kept_from_children

T = TypeVar("T")

KINDS = ("output", "report")
PORTS_OF_EACH = 500  # of 36 ranges: every process of the tests may need some
GRACE = 5.0  # seconds

FORKING = multiprocessing.get_context("forkserver")

PREPARATION = "generator.check.train.preparation"  # comes last
# What programs and their libraries import late: without these every rank would import them anew.
LATE_IMPORTS = (
    "generator.check.train.judgement",
    "generator.check.train.hooks",
    "generator.check.train.rank",
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.nn.functional",
    "torch.utils.serialization.config",
    "tqdm.contrib.logging",
    "typeguard",  # by tyro
)
# By the package that imports them. A logger that is not here only takes longer.
LATE_IMPORTS_OF = {
    "wandb": ("wandb.sdk.launch.inputs.internal", "yaml"),
    "mlflow": ("alembic.command", "mlflow.store.tracking.sqlalchemy_workspace_store", "sqlalchemy.dialects.sqlite"),
    "torch.utils.tensorboard": ("tensorboard.backend.event_processing.event_accumulator",),
}


@dataclass(frozen=True)
class Run:
    """One start of a project's train.py."""

    project: Path
    launcher: str
    options: list[str]
    env: dict[str, str]
    run_dir: Path | None = None  # to look at when it has ended well
    logger: str = ""  # whose records to read there
    world_size: int = 2
    one_writes: bool = True  # only rank 0 can write files; not with loader workers, whose semaphores are files
    deadline: float = 60.0  # after which all of its processes are killed (seconds)


@dataclass(frozen=True)
class Task:
    """A function to call in a forked process, where all is imported already."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    deadline: float = 60.0  # seconds


@dataclass
class Ended:
    """How a run or a task ended: what its processes left, those of the ranks first in the order of the ranks."""

    codes: list[int | None]  # exit codes of the processes that were started; None: it was killed at the deadline
    output: list[str]  # of each rank, and after them of the program that starts them
    seen: list[Any]  # of each rank its Observation, of a task its result; None where it did not get that far
    seconds: float

    @property
    def complaint(self) -> str:
        """Why this is no success; "" if all processes ended with code 0."""
        if all(code == 0 for code in self.codes):
            return ""
        how = ", ".join(
            "was killed, for it did not end" if code is None else f"exit code {code}" for code in self.codes
        )
        return how + "".join(f"\n--- output of process {i} ---\n{text}" for i, text in enumerate(self.output) if text)


@dataclass
class Running:
    """A run that has not ended yet."""

    processes: list[BaseProcess]
    readers: dict[Connection, tuple[str, int]]  # what comes from where: output or report, of which process
    ends: float  # when its deadline is
    started: float
    output: list[bytearray]
    seen: list[Any]
    pids: set[int] = field(default_factory=set)

    def waits_for(self) -> list[Any]:
        """What the loop has to watch."""
        return [*self.readers, *(process.sentinel for process in self.processes if process.exitcode is None)]

    def take(self, reader: Connection) -> None:
        """Read what has come."""
        kind, index = self.readers[reader]
        try:
            if kind == "output":
                data = os.read(reader.fileno(), 1 << 16)
                if not data:
                    raise EOFError
                self.output[index] += data
            else:
                message = reader.recv()
                if isinstance(message, int):
                    self.pids.add(message)
                else:
                    self.seen[index] = message
        except (EOFError, OSError):
            reader.close()
            del self.readers[reader]

    def has_ended(self) -> bool:
        """Whether all processes are gone. What they wrote last may still wait to be read."""
        return all(process.exitcode is not None for process in self.processes)

    def kill(self) -> None:
        """End all of its processes at once."""
        for pid in self.pids:
            kill(pid)
        for process in self.processes:
            process.kill()
            process.join()

    def end(self) -> Ended:
        """Return how it ended, after killing it if the deadline is over."""
        codes = [process.exitcode for process in self.processes]
        if not self.has_ended():
            self.kill()
        for reader in [*self.readers]:
            while reader in self.readers and reader.poll():
                self.take(reader)
            reader.close()
        return Ended(
            codes,
            [text.decode(errors="replace") for text in self.output],
            self.seen,
            time.perf_counter() - self.started,
        )


def kill(pid: int | None) -> None:
    """End a process that may be gone already."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(work: Run | Task, port: int) -> Running:
    """Start the processes of a run or of a task."""
    starts_its_ranks = isinstance(work, Run) and work.launcher in STARTS_ITS_RANKS
    reporting = work.world_size if isinstance(work, Run) else 1
    pipes = [(FORKING.Pipe(duplex=False), FORKING.Pipe(duplex=False)) for _ in range(reporting + starts_its_ranks)]
    wires = [Wires(output[1], report[1]) for output, report in pipes]
    if isinstance(work, Task):
        processes = [FORKING.Process(target=do_task, args=(work.function, work.arguments, wires[0]))]
    else:
        told = places(work.launcher, work.world_size, port)
        shared = (work.run_dir, work.logger, work.one_writes)
        scenes = [Scene(work.project, work.options, work.env, place, *shared) for place in told]
        if starts_its_ranks:
            processes = [FORKING.Process(target=be_spawner, args=(scenes[0], wires[-1], wires[:-1]))]
        else:
            processes = [FORKING.Process(target=be_rank, args=(i, scenes[i], wires[i])) for i in range(reporting)]
    for process in processes:
        process.start()
    for own in wires:
        own.output.close()
        own.report.close()
    readers = {pipe[0]: (kind, i) for i, both in enumerate(pipes) for kind, pipe in zip(KINDS, both, strict=True)}
    now = time.perf_counter()
    return Running([*processes], readers, now + work.deadline, now, [bytearray() for _ in pipes], [None] * reporting)


Job = Generator[Run | Task, Ended, T]


def train_all(jobs: Iterable[Job[T]], at_once: int) -> Generator[T, None, None]:
    """Do all jobs, some at a time, and yield their results as they come.

    A job is a generator: it yields a run or a task, is sent how that ended, and returns its result. Where this
    generator is closed, or an exception such as KeyboardInterrupt comes, no process is left behind.
    """
    waiting: deque[tuple[Job[T], Ended | None]] = deque((job, None) for job in jobs)
    ports = free_ports()
    active: list[tuple[Running, Job[T]]] = []
    try:
        while waiting or active:
            while waiting and len(active) < at_once:
                job, ended = waiting.popleft()
                try:
                    work = next(job) if ended is None else job.send(ended)
                except StopIteration as done:
                    yield done.value
                else:
                    active.append((start(work, next(ports)), job))
            for running, job in pump(active) if active else []:
                active.remove((running, job))
                waiting.appendleft((job, running.end()))  # what has begun goes first
    except BaseException:
        untyped: Any = forkserver
        # Killed first, the forking process takes those with it that have not told who they are.
        kill(untyped._forkserver._forkserver_pid)
        for running, _ in active:
            running.kill()
        raise


def pump(active: Sequence[tuple[Running, Job[T]]]) -> list[tuple[Running, Job[T]]]:
    """Wait until something happens, and return the runs that have ended or are overdue."""
    watched = [each for running, _ in active for each in running.waits_for()]
    # Looked at after the list is made: it holds no process that has ended before.
    over = any(running.has_ended() for running, _ in active)
    patience = 0 if over else min(running.ends for running, _ in active) - time.perf_counter()
    ready = set(connection.wait(watched, max(0, patience)))
    for running, _ in active:
        for reader in [*running.readers]:
            if reader in ready:
                running.take(reader)
    now = time.perf_counter()
    for running, _ in active:
        if any(process.exitcode for process in running.processes):
            # As launchers do: where one has failed, the others get some seconds to end by themselves.
            running.ends = min(running.ends, now + GRACE)
    return [(running, job) for running, job in active if running.has_ended() or now > running.ends]


def free_ports() -> Iterator[int]:
    """Ports below those that the system gives to outgoing connections, from a range that no other process takes from.

    Between the look at a port and the program that listens there, another process of the kind could take it.
    """
    with socket.socket(socket.AF_UNIX) as claim:  # gone with this process, whatever ends it
        first = next(first for first in range(12000, 30000, PORTS_OF_EACH) if is_claimed(claim, first))
        for port in itertools.cycle(range(first, first + PORTS_OF_EACH)):
            if is_free(port):
                yield port


def is_claimed(claim: socket.socket, first: int) -> bool:
    """Claim the ports from this one on, unless another process has."""
    try:
        claim.bind(f"\0ddp-template-ports-{first}")
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Whether nobody listens at a port."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def forking(*, all_data: bool = False) -> Iterator[Callable[[Iterable[str]], None]]:
    """Inside, train_all() forks ranks from a process of its own, which begins at once to import what all of them need.

    The function that this gives must be called before: it tells that process what else programs import. They see
    only the first part of their data, unless they are to have all of it.
    """
    untyped: Any = forkserver
    server = untyped._forkserver
    end_server(server)  # one that others have started has imported other modules
    before = server._preload_modules
    # Children would import the script that is running here, and with it all of Copier.
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            ALL_DATA: str(int(all_data)),
            MODULES: f"{folder}/modules",
            "OMP_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow, which pandas imports, would start one
        }
        FORKING.set_forkserver_preload([*LATE_IMPORTS, PREPARATION])
        try:
            with interrupts_kept_from_children():
                server.ensure_running()
            yield functools.partial(name_modules, Path(folder))
        finally:
            sys.modules["__main__"] = main
            end_server(server)
            server._preload_modules = before


def end_server(server: Any) -> None:
    """End the forking process, if there is one, even where it still waits for the names of modules."""
    kill(server._forkserver_pid)
    server._stop()


def name_modules(folder: Path, modules: Iterable[str]) -> None:
    """Tell the forking process what to import."""
    named = [*modules]
    late = [name for module in named for name in LATE_IMPORTS_OF.get(module, ())]
    (folder / "names").write_text("\n".join(dict.fromkeys([*named, *late])))
    (folder / "names").rename(folder / "modules")
