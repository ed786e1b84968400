"""Runs train.py, or functions of it, on ranks that a test starts, watches and kills one by one."""

import atexit
import gc
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import multiprocessing as mp

from benchmarks.runner import train_epoch
from generator.chaos.invariants import newest_step
from generator.check.train.forking import FORKING, forking, free_ports
from generator.check.train.rank import SERVER
from tests.support.processes import hang_timeout, wait_until
from tests.support.training import ON_CPU, differences

# Modules that the process which forks ranks imports here, in addition to those of the check.
PRELOAD = [__name__, "pytest", "copier", "generator.render.workers", "numpy.typing", "torch.utils.data"]
# A forked rank cannot use a GPU, since its forking process may have looked for one.
SPAWNING = multiprocessing.get_context("spawn")

STARTED = ExitStack()  # what start_forking() has started
atexit.register(STARTED.close)
PORTS = free_ports()  # no other process of the tests uses these
Entry = Callable[[], None]


@dataclass
class Rank:
    process: BaseProcess
    output: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ends_with(self, code: int, timeout: float) -> str:
        """Wait until the rank ends, and return its output. Fails on another exit code, and on a timeout."""
        self.process.join(hang_timeout(timeout))
        printed = self.output.read_text()
        assert self.process.exitcode == code, f"exit code {self.process.exitcode}:\n{printed}"
        return printed


def own_run_dir(run_dir: Path, rank: int) -> Path:
    """Return the --run-dir of a rank. Each rank has a different one, to show that only rank 0 uses its own."""
    return run_dir if rank == 0 else run_dir.with_name(f"{run_dir.name}-of-rank-{rank}")


def run_train() -> None:
    runpy.run_path(os.path.abspath("train.py"), run_name="__main__")  # absolute, for processes that it spawns


def project_module(name: str) -> Any:
    return importlib.import_module(f"ddp_project.{name}")


def wrap(place: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of that project, such as "task.compute", by the one that make() returns."""
    module, _, name = place.rpartition(".")
    owner = project_module(module)
    setattr(owner, name, make(getattr(owner, name)))


def on_compute(work: Callable[[Any, Any], object]) -> None:
    """Let something be done with the model and the batch each time before the task computes."""

    def make(compute: Any) -> Any:
        def compute_then(model: Any, batch: Any, config: Any) -> Any:
            work(model, batch)
            return compute(model, batch, config)

        return compute_then

    wrap("task.compute", make)


def join(main: Callable[[Any, Any, torch.device], int] | None, **options: object) -> None:
    """Join the other ranks as train.py does, and run main() with these options, or with the command line."""
    process_group, config = project_module("runtime.distributed"), project_module("config").Config
    chosen = config(**options) if options else project_module("runtime.cli").parse(config)
    sys.exit(process_group.run_rank(main, chosen, process_group.read_dist_env()))


def errors_in(printed: Iterable[str]) -> list[str]:
    """Return the error lines in the output of ranks. Fails if it has a traceback."""
    text = "".join(printed)
    assert "Traceback" not in text, text
    return [line for line in text.splitlines() if line.startswith("error: ")]


def error_in(printed: Iterable[str]) -> str:
    [error] = errors_in(printed)
    return error


def lone_error_in(printed: Iterable[str]) -> str:
    """Return the only error line. Fails if the output has other lines, except INFO."""
    lines = [line for line in "".join(printed).splitlines() if line and " INFO " not in line]
    assert [line[:7] for line in lines] == ["error: "], lines
    return lines[0]


def run_rank(entry: Entry, project: Path, options: list[str], env: dict[str, str], output: Path) -> None:
    """Run a rank, with environment, folder, command line and output set as by a shell."""
    gc.enable()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(project)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["train.py", *options]
    sys.path.insert(0, str(project))
    entry()


def start_forking() -> None:
    """Start the process that ranks are forked from, unless it runs: importing torch takes longer than their steps."""
    if SERVER._forkserver_pid is None:
        STARTED.close()
        with patch.dict(os.environ):  # other tests must not get the variables of that process
            STARTED.enter_context(forking(all_data=True))(PRELOAD)


def set_by_torchrun(processes: int) -> list[dict[str, str]]:
    """Return the variables of each rank."""
    size, place = str(processes), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(next(PORTS))}
    of_all = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, **place}
    return [{**of_all, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(processes)]


def start_rank(
    entry: Entry, project: Path, command: list[str], variables: Mapping[str, str], output: Path, context: Any = FORKING
) -> Rank:
    output.unlink(missing_ok=True)
    process = context.Process(target=run_rank, args=(entry, project, command, {**os.environ, **variables}, output))
    process.start()
    return Rank(process, output)


def start_ranks(
    project: Path,
    run_dir: Path,
    *options: str,
    processes: int = 2,
    env: Mapping[str, str] | None = None,
    entry: Entry = run_train,
    outputs: Path | None = None,
) -> list[Rank]:
    """Start train.py, or another entry, on each rank, as torchrun does. Output goes to RUN-rank-NUMBER.out."""
    start_forking()
    ranks = []
    for number, variables in enumerate(set_by_torchrun(processes)):
        command = [*ON_CPU, "--run-dir", str(own_run_dir(run_dir, number)), *options]
        output = (outputs or run_dir.parent) / f"{run_dir.name}-rank-{number}.out"
        context = SPAWNING if "cuda" in command else FORKING
        ranks.append(start_rank(entry, project, command, variables | dict(env or {}), output, context))
    return ranks


def run_python(program: str) -> None:
    """Run a file of the project, or code as after -c."""
    is_file = program.endswith(".py")
    sys.argv[0] = program if is_file else "-c"
    if is_file:
        runpy.run_path(os.path.abspath(program), run_name="__main__")
    else:
        exec(program, {"__name__": "__main__"})


def output_of_fork(program: str, *options: str | Path, project: Path, processes: int = 1, code: int = 0) -> str:
    """Run a file of the project, or code as after -c, and return all that it prints. Fails on another exit code.

    If there are several processes, they are ranks.
    """
    start_forking()
    entry, words = partial(run_python, program), [str(option) for option in options]
    with tempfile.TemporaryDirectory() as place:
        of_ranks = set_by_torchrun(processes) if processes > 1 else [{}]
        ranks = [
            start_rank(entry, project, words, variables, Path(place, str(number)))
            for number, variables in enumerate(of_ranks)
        ]
        try:
            return "".join([rank.ends_with(code, 120) for rank in ranks])
        finally:
            kill_all(ranks)


def train_on_ranks(
    project: Path, run_dir: Path, *options: str, code: int = 0, timeout: float = 120, **how: Any
) -> list[str]:
    """Start ranks, and return the output of each. Fails on another exit code, or if other ranks than 0 write."""
    ranks = start_ranks(project, run_dir, *options, **how)
    try:
        printed = [rank.ends_with(code, timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number in range(1, len(ranks)):
        assert not own_run_dir(run_dir, number).exists(), f"rank {number} wrote files"
    return printed


def assert_same_state(one: dict[str, Any], other: dict[str, Any], *parts: str) -> None:
    """Compare two checkpoints, in these parts or in all."""
    for part in parts or ("model", "optimizer", "ranks", "progress"):
        assert differences(one[part], other[part]) == [], part


def names(run_dir: Path) -> list[str]:
    """Return the names of the checkpoints."""
    return sorted(file.name for file in (run_dir / "checkpoints").iterdir() if file.name != "manifest.json")


def any_ended(ranks: list[Rank]) -> bool:
    return not all(rank.process.is_alive() for rank in ranks)


def kill_all(ranks: list[Rank]) -> None:
    """Kill all at once."""
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.join()


def kill_after(ranks: list[Rank], run_dir: Path, step: int, delay: float) -> bool:
    """Kill all ranks at once, some time after a step was saved. Returns False if they ended before."""
    wait_until(lambda: newest_step(run_dir) >= step or any_ended(ranks), told=ranks[0].output.read_text, pause=0.001)
    time.sleep(delay)
    kill_all(ranks)
    codes = {rank.process.exitcode for rank in ranks}
    assert codes <= {0, -signal.SIGKILL}, ranks[0].output.read_text()
    return codes == {-signal.SIGKILL}


def on_two_ranks(work: Any, folder: Path, *arguments: Any, forked: bool = False) -> list[Any]:
    """Run work(rank, *arguments) on two Gloo processes, and return the result of each."""
    if forked:
        start_forking()
    mp.start_processes(_rank, (work, folder, arguments), 2, start_method="forkserver" if forked else "spawn")
    return [torch.load(folder / f"result{rank}.pt", weights_only=False) for rank in range(2)]


def _rank(rank: int, work: Any, folder: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=600), rank=rank, world_size=2)
    torch.save(work(rank, *arguments), folder / f"result{rank}.pt")
    gc.collect()  # a model in a cycle of references would hold the group, which can abort the process at its end
    dist.destroy_process_group()


def make_run(rank: int, project: Path, options: dict[str, Any], device: str = "cpu") -> tuple[Any, Any]:
    """Import the project's train.py, and set up a run of two ranks with these options."""
    sys.path.insert(0, str(project))
    train, config = importlib.import_module("train"), project_module("config").Config(**options)
    return train, train.Run(config, project_module("runtime.launcher").DistEnv(rank, rank, 2, 2), torch.device(device))


def collectives_of_an_epoch(rank: int, project: Path, options: dict[str, Any]) -> dict[str, int]:
    train, run = make_run(rank, project, options)
    with torch.profiler.profile() as profile:
        train_epoch(train, run)
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith("gloo:")}


def weights_of_an_epoch_on_a_gpu(rank: int, project: Path, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    train, run = make_run(rank, project, options, "cuda:0")
    train_epoch(train, run)
    return {name: value.cpu() for name, value in run.model.state_dict().items()}


def gradients_beside_buckets(rank: int, project: Path, options: dict[str, Any]) -> dict[str, int]:
    """Return the most bytes of gradients outside DDP's buckets between micro-batches: in them, or fresh ones."""
    found = {}
    for kind in ("in buckets", "fresh"):
        train, run = make_run(rank, project, options | {"run_dir": options["run_dir"] / kind})
        if kind == "fresh":
            run.ddp.module.in_buckets = False
            run.ddp.zero_grad()
        found[kind] = most_beside_buckets(train, run)
    return found | {"weights": sum(4 * weight.numel() for weight in run.model.parameters())}


def most_beside_buckets(train: Any, run: Any) -> int:
    between: dict[int, int] = {}  # places and bytes of the gradients before each micro-batch
    most = [0]

    def storages() -> list[torch.UntypedStorage]:
        return [each.grad.untyped_storage() for each in run.model.parameters() if each.grad is not None]

    def before_step(*_: Any) -> None:
        buckets = {storage.data_ptr() for storage in storages()}
        most.append(sum(size for place, size in between.items() if place not in buckets))
        between.clear()

    run.model.register_forward_pre_hook(lambda *_: between.update((one.data_ptr(), one.nbytes()) for one in storages()))
    run.optimizer.register_step_pre_hook(before_step)
    train_epoch(train, run)
    return max(most)
