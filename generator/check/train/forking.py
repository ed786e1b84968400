"""Runs many small training runs quickly: one process imports torch, and every rank is forked from it.

The forking process has neither threads nor a process group. Here, one thread waits for each run.
"""

import functools
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from generator.check.train.environments import STARTS_ITS_RANKS, places
from generator.check.train.rank import ALL_DATA, MODULES, SERVER, Pipes, Run, run_rank, run_spawner
from generator.render.scratch import interrupts_kept_from_children

S = TypeVar("S")
T = TypeVar("T")

KINDS = ("output", "report")
PORTS_OF_EACH = 500  # of 36 ranges: every process of the tests may need some
GRACE = 15.0  # seconds

FORKING = multiprocessing.get_context("forkserver")
BOOKKEEPING = threading.Lock()  # of multiprocessing, whose own is not safe for several threads
ENDING = threading.Event()  # no process may start any more

PREPARATION = "generator.check.train.preparation"  # comes last
# Modules that programs and their libraries import late: otherwise, each rank would import them again.
LATE_IMPORTS = (
    "encodings.cp437",  # by zipfile, which reads .npz files
    "generator.check.train.verification",
    "generator.check.train.hooks",
    "generator.check.train.rank",
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.nn.functional",
    "torch.utils.flop_counter",
    "torch.utils.serialization.config",
    "typeguard",  # by tyro
)
# By the package that imports them. A logger that is not here only takes longer.
LATE_IMPORTS_OF = {
    "PIL": ("PIL.JpegImagePlugin", "PIL.PngImagePlugin"),
    "wandb": ("wandb.sdk.launch.inputs.internal", "yaml"),
    "mlflow": ("alembic.command", "mlflow.store.tracking.sqlalchemy_workspace_store", "sqlalchemy.dialects.sqlite"),
    "torch.utils.tensorboard": ("tensorboard.backend.event_processing.event_accumulator",),
}


@dataclass
class Ended:
    """How a run ended. Lists have the ranks first, in their order, and then other processes."""

    codes: list[int | None]  # exit codes of the processes; None: killed at the deadline
    output: list[str]  # of each rank, then of the program that starts them
    seen: list[Any]  # the RankTrace of each rank; None if it ended before that
    seconds: float

    @property
    def complaint(self) -> str:
        """Return why the run failed; "" if all processes ended with code 0."""
        if all(code == 0 for code in self.codes):
            return ""
        ends = ("was killed, for it did not end" if code is None else f"exit code {code}" for code in self.codes)
        said = (f"\n--- output of process {i} ---\n{text}" for i, text in enumerate(self.output) if text)
        return ", ".join(ends) + "".join(said)


@dataclass
class Running:
    processes: list[BaseProcess]
    readers: dict[Connection, tuple[str, int]]  # output or report, and of which process
    deadline: float
    started: float
    output: list[bytearray]
    seen: list[Any]
    pids: set[int] = field(default_factory=set)

    def codes(self) -> list[int | None]:
        with BOOKKEEPING:
            return [process.exitcode for process in self.processes]

    def watch(self) -> None:
        """Read output and reports until all processes have ended, or the deadline is over."""
        while None in (codes := self.codes()):
            if any(codes):
                # As launchers do: after a failure, the others get some seconds to end by themselves.
                self.deadline = min(self.deadline, time.perf_counter() + GRACE)
            patience = self.deadline - time.perf_counter()
            if patience < 0:
                return
            alive = [each.sentinel for each, code in zip(self.processes, codes, strict=True) if code is None]
            ready = {*connection.wait([*self.readers, *alive], patience)}
            for reader in [*self.readers]:
                if reader in ready:
                    self.take(reader)

    def take(self, reader: Connection) -> None:
        kind, index = self.readers[reader]
        try:
            if kind == "output":
                data = os.read(reader.fileno(), 1 << 16)
                if not data:
                    raise EOFError
                self.output[index] += data
            elif isinstance(message := reader.recv(), int):
                self.pids.add(message)
            else:
                self.seen[index] = message
        except (EOFError, OSError):
            reader.close()
            del self.readers[reader]

    def end(self) -> Ended:
        """Kill the processes that still run, read the rest of their output, and return how the run ended."""
        codes = self.codes()
        for pid in self.pids if None in codes else ():
            kill(pid)
        with BOOKKEEPING:
            for process in self.processes:
                process.kill()
                process.join()
        for reader in [*self.readers]:
            while reader in self.readers and reader.poll():
                self.take(reader)
            reader.close()
        output = [text.decode(errors="replace") for text in self.output]
        return Ended(codes, output, self.seen, time.perf_counter() - self.started)


def kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(run: Run) -> Running:
    spawns = run.launcher in STARTS_ITS_RANKS
    pipes = [(FORKING.Pipe(duplex=False), FORKING.Pipe(duplex=False)) for _ in range(run.world_size + spawns)]
    wires = [Pipes(output[1], report[1]) for output, report in pipes]
    told = places(run.launcher, run.world_size, next(PORTS))
    if spawns:
        processes = [FORKING.Process(target=run_spawner, args=(run, told[0], wires[-1], wires[:-1]))]
    else:
        every = enumerate(zip(told, wires, strict=True))
        processes = [FORKING.Process(target=run_rank, args=(i, run, place, own)) for i, (place, own) in every]
    for process in processes:
        process.start()
    for own in wires:
        own.output.close()
        own.report.close()
    readers = {pipe[0]: (kind, i) for i, both in enumerate(pipes) for kind, pipe in zip(KINDS, both, strict=True)}
    now = time.perf_counter()
    deadline = now + run.deadline * slowness()
    return Running([*processes], readers, deadline, now, [bytearray() for _ in pipes], [None] * run.world_size)


def slowness() -> float:
    """Return how much longer a run may take because of other work: a check alone runs four processes for each core."""
    return max(1.0, os.getloadavg()[0] / (4 * (os.cpu_count() or 1)))


def run_forked(run: Run) -> Ended:
    """Start the processes of a run, kill them after its deadline, and return how they ended."""
    with BOOKKEEPING:
        if ENDING.is_set():
            raise RuntimeError("other work is being ended by an error")
        running = start(run)
    running.watch()
    return running.end()


def train_all(train: Callable[[S], T], subjects: Iterable[S], at_once: int) -> Generator[tuple[S, T], None, None]:
    """Train all subjects, some at a time, and yield each with its result. No error leaves a process behind."""
    threads = ThreadPoolExecutor(at_once)
    jobs = {threads.submit(train, subject): subject for subject in subjects}
    try:
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    except BaseException:
        ENDING.set()
        with BOOKKEEPING:  # a process that starts later would start the forking process again
            end_server()  # all ranks die with it
        raise
    finally:
        threads.shutdown(cancel_futures=True)
        ENDING.clear()


def free_ports() -> Iterator[int]:
    """Yield free ports below the ephemeral ones, from a range that no other process of this kind uses."""
    with socket.socket(socket.AF_UNIX) as claim:  # released when this process ends
        ranges = range(12000, 30000, PORTS_OF_EACH)
        first = next(first for first in ranges if can_bind(claim, f"\0ddp-template-ports-{first}"))
        for port in itertools.cycle(range(first, first + PORTS_OF_EACH)):
            with socket.socket() as probe:
                is_free = can_bind(probe, ("127.0.0.1", port))
            if is_free:
                yield port


def can_bind(probe: socket.socket, address: Any) -> bool:
    with suppress(OSError):
        probe.bind(address)
        return True
    return False


PORTS = free_ports()


@contextmanager
def forking(*, all_data: bool = False) -> Iterator[Callable[[Iterable[str]], None]]:
    """Fork ranks from a new process. Call the function that this yields first: it names the modules to import."""
    end_server()  # an earlier one has imported other modules
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
                SERVER.ensure_running()
            yield functools.partial(name_modules, Path(folder))
        finally:
            sys.modules["__main__"] = main
            end_server()
            FORKING.set_forkserver_preload(["__main__"])


def end_server() -> None:
    """End the forking process, if there is one, even if it still waits for the names of modules."""
    kill(SERVER._forkserver_pid)
    SERVER._stop()


def name_modules(folder: Path, modules: Iterable[str]) -> None:
    named = [*modules]
    late = [name for module in named for name in LATE_IMPORTS_OF.get(module, ())]
    (folder / "names").write_text("\n".join(dict.fromkeys([*named, *late])))
    (folder / "names").rename(folder / "modules")
