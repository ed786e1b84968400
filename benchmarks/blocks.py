"""Compares the generated project, with and without options, and the fastest plain loop, block by block.

All train in the same two processes, and take turns after each block of steps: what the machine does to one it does to
the others. Whole runs, as benchmarks/speed.py compares them, differ by more than these do. The blocks have neither
checkpoints nor evaluations.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest import mock

import torch
import torch.distributed as dist
from torch import multiprocessing as mp

from . import runner
from .contenders import minimal, settings
from .contenders.workloads import EPOCHS, NAME, STEPS, chosen_workload
from .runner import Record, imported, in_turn, ratios, say, seconds_of, train_epoch
from .trials import render_project

STEPS_OF_BLOCK = {"tiny_mlp": 200, "small_cnn": 100, "resnet": 10, "transformer": 10, "wide": 10}
PLAIN, PLAIN_STATIC, GENERATED = "plain", "plain, static", "generated"
OPTIONS: dict[str, Record] = {
    "--static-graph": {"static_graph": True},
    "--bucket-mib 1": {"bucket_mib": 1},
    "--bucket-mib 100": {"bucket_mib": 100},
}
WITH_NCCL = {"--bf16-gradients": {"bf16_gradients": True}}
Loop = Callable[[], None]


@dataclass
class Benchmark(runner.Benchmark):
    """The time of a step of each, and the ratio of its samples per second to the generated project's."""

    rounds: int = 40
    """How many blocks each trains."""
    workloads: tuple[str, ...] = tuple(STEPS_OF_BLOCK)
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: two GPUs and NCCL, without the plain loops."""

    key: ClassVar = ("workload",)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of each workload."""
        render_project(folder / "project")
        for workload in self.workloads:
            say(workload)
            yield measure(folder, workload, self.rounds, self.device)


def measure(folder: Path, workload: str, blocks: int, device: str = "cpu") -> list[Record]:
    """Return what two ranks measure of a workload."""
    chosen = {NAME: workload, STEPS: str(STEPS_OF_BLOCK[workload]), EPOCHS: "1"}
    measured = on_two_ranks(measure_on_rank, folder, chosen, blocks, device)
    return [{"workload": workload, "loop": name, **numbers} for name, numbers in measured.items()]


def on_two_ranks(work: Callable[..., None], folder: Path, env: Mapping[str, str], *arguments: Any) -> Any:
    """Call work(rank, folder, port, *arguments) on two ranks, and return what one has written to measured.json."""
    # Like the store of torchrun, it is kept by a process that has nothing else to do.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with mock.patch.dict(os.environ, env):
        mp.spawn(work, (folder, store.port, *arguments), nprocs=settings.RANKS)
    return json.loads((folder / "measured.json").read_text())


@contextmanager
def joined(rank: int, project: Path, port: int, backend: str = "gloo") -> Iterator[None]:
    """Set up a rank as a project does, and meet the other one."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(project))
    imported("ddp_project.runtime.distributed").schedule_as_batch()
    meeting: Record = {"store": dist.TCPStore("127.0.0.1", port, is_master=False), "timeout": timedelta(minutes=5)}
    dist.init_process_group(backend, rank=rank, world_size=settings.RANKS, **meeting)
    yield
    dist.destroy_process_group()


def measure_on_rank(rank: int, folder: Path, port: int, blocks: int, kind: str) -> None:
    """Train block after block on one of the ranks. Rank 0 writes what it finds."""
    on_cpu = kind == "cpu"
    device = torch.device("cpu") if on_cpu else torch.device("cuda", rank)
    if not on_cpu:
        torch.cuda.set_device(device)
    plain = {PLAIN: False, PLAIN_STATIC: True} if on_cpu else {}
    options = OPTIONS if on_cpu else OPTIONS | WITH_NCCL
    with (
        joined(rank, folder / "project", port, "gloo" if on_cpu else "nccl"),
        open(folder / f"printed{rank}", "w") as printed,
        mock.patch.multiple(sys, stdout=printed, stderr=printed),
    ):
        loops = {name: plain_blocks(folder, static_graph=static) for name, static in plain.items()}
        for name, chosen in {GENERATED: {}, **options}.items():
            loops[name] = partial(train_block, generated_run(rank, folder, device, **chosen))
        found = take_turns(loops, blocks)
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(found))


def plain_blocks(folder: Path, *, static_graph: bool = False) -> Loop:
    """Return what trains one block with the fastest plain loop."""
    options = settings.Options(folder, tuned=True, static_graph=static_graph)
    model, optimizer, loader, sampler = settings.plain_ddp(options, chosen_workload())

    def train() -> None:
        sampler.set_epoch(sampler.epoch + 1)
        minimal.train_epoch(model, optimizer, loader, sampler.epoch)

    return train


def generated_run(rank: int, folder: Path, device: torch.device, ranks: int = settings.RANKS, **options: Any) -> Any:
    """Return what train_block() trains with in the generated project, which keeps its log in a file."""
    train, config, launcher = map(imported, ("train", "ddp_project.config", "ddp_project.runtime.launcher"))
    workload = chosen_workload()
    options |= {"global_batch_size": workload.batch, "lr": workload.lr, "weight_decay": workload.weight_decay}
    options |= {"epochs": 10**6, "warmup_steps": 0, "device": device.type}
    options |= {"run_dir": Path(tempfile.mkdtemp(dir=folder), "run")}
    return train.Run(config.Config(**options), launcher.DistEnv(rank, rank, ranks, ranks), device)


def train_block(run: Any) -> None:
    """Train one block with the generated project."""
    train_epoch(imported("train"), run)


def take_turns(loops: dict[str, Loop], blocks: int) -> dict[str, Record]:
    """Train blocks in turn, after a first one of each that does not count, and compare those of the same turn."""

    def timed(loop: Loop) -> Record:
        def until_all_are_done() -> None:
            loop()
            dist.barrier()

        dist.barrier()
        return {"seconds": seconds_of(until_all_are_done) / chosen_workload().steps}

    runs = {name: partial(timed, loop) for name, loop in loops.items()}
    *_, found = in_turn(runs, blocks, warm_up=1, tell=False)
    seconds: dict[str, list[float]] = {name: numbers["seconds"] for name, numbers in found.items()}
    return {
        name: {"seconds": statistics.median(own), "ratio_quartiles": quartiles(seconds[GENERATED], own)}
        for name, own in seconds.items()
    }


def quartiles(generated: list[float], own: list[float]) -> list[float]:
    """Return the quartiles of the ratio of a loop's samples per second to the generated project's."""
    return [round(ratio, 4) for ratio in statistics.quantiles(ratios(generated, own))]
