"""Compares the generated project, with and without options, and the fastest plain loop: python -m benchmarks.blocks.

All train in the same two processes, and take turns after each block of steps: so what the machine does to one it does
to the others, too. Whole runs, as benchmarks/speed.py compares them, differ by more than these do. Checkpoints and
evaluations are not in these blocks. The results are in benchmarks/results/blocks.json.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import torch.distributed as dist
import typer
from torch import multiprocessing as mp

from generator.answers.questions import TEMPLATE

from .contenders import minimal, settings
from .contenders.workloads import EPOCHS, NAME, STEPS, chosen_workload
from .failures import failures_told
from .guards import imported
from .machines import machine
from .progress import say
from .rounds import Record
from .trials import render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "blocks.json"
OF_A_BLOCK = {"tiny_mlp": 200, "small_cnn": 100, "resnet": 10, "transformer": 10, "wide": 10}  # steps
PLAIN, PLAIN_STATIC, GENERATED = "plain", "plain, static", "generated"
OPTIONS: dict[str, dict[str, Any]] = {
    "--static-graph": {"static_graph": True},
    "--bucket-mib 1": {"bucket_mib": 1},
    "--bucket-mib 100": {"bucket_mib": 100},
}
WITH_NCCL = {"--bf16-gradients": {"bf16_gradients": True}}


def main(
    blocks: Annotated[int, typer.Option(min=2, help="How many blocks each trains.")] = 40,
    workloads: Annotated[str, typer.Option(help="Which workloads, with commas between.")] = ",".join(OF_A_BLOCK),
    device: Annotated[str, typer.Option(help="cuda: two GPUs and NCCL, without the plain loops.")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure the time of a step of each, and the ratio of its samples per second to the generated project's."""
    measured = {}
    with failures_told(), tempfile.TemporaryDirectory() as folder:
        render_project(Path(folder) / "project")
        for workload in workloads.split(","):
            say(workload)
            measured[workload] = measure(Path(folder), workload, blocks, device)
    results = {"date": date.today().isoformat(), "machine": machine(), "workloads": measured}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    typer.echo(f"results: {out}")


def measure(folder: Path, workload: str, blocks: int, device: str = "cpu") -> Record:
    """Return what two ranks measure of a workload."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    chosen = {NAME: workload, STEPS: str(OF_A_BLOCK[workload]), EPOCHS: "1"}
    with mock.patch.dict(os.environ, chosen):
        mp.spawn(measure_on_rank, (folder, store.port, blocks, device), nprocs=settings.RANKS)
    measured: Record = json.loads((folder / "measured.json").read_text())
    return measured


def measure_on_rank(rank: int, folder: Path, port: int, blocks: int, kind: str) -> None:
    """On one of the ranks: train block after block. Rank 0 writes what it finds."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(folder / "project"))
    imported("ddp_project.runtime.process_group").schedule_as_batch()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    device, backend, chosen = torch.device("cpu"), "gloo", OPTIONS
    if kind == "cuda":
        device, backend, chosen = torch.device("cuda", rank), "nccl", OPTIONS | WITH_NCCL
        torch.cuda.set_device(device)
    timeout = timedelta(minutes=5)
    dist.init_process_group(backend, store=store, timeout=timeout, rank=rank, world_size=settings.RANKS)
    with open(folder / f"printed{rank}", "w") as printed, mock.patch.multiple(sys, stdout=printed, stderr=printed):
        loops = {}
        if kind == "cpu":
            loops = {PLAIN: plain_blocks(folder), PLAIN_STATIC: plain_blocks(folder, static_graph=True)}
        loops[GENERATED] = generated_blocks(rank, folder, device)
        loops |= {name: generated_blocks(rank, folder, device, **options) for name, options in chosen.items()}
        found = take_turns(loops, blocks)
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def plain_blocks(folder: Path, *, static_graph: bool = False) -> Callable[[], None]:
    """Return what trains one block with the fastest plain loop."""
    options = settings.Options(folder, tuned=True, static_graph=static_graph)
    model, optimizer, loader, sampler = settings.plain_ddp(options, chosen_workload())

    def train() -> None:
        sampler.set_epoch(sampler.epoch + 1)
        minimal.train_epoch(model, optimizer, loader, sampler.epoch)

    return train


def generated_blocks(
    rank: int, folder: Path, device: torch.device, ranks: int = settings.RANKS, **options: Any
) -> Callable[[], None]:
    """Return what trains one block with the generated project, which keeps its log in a file."""
    train, config, launcher = map(imported, ("train", "ddp_project.config", "ddp_project.runtime.launcher"))
    workload = chosen_workload()
    options |= {"global_batch_size": workload.batch, "lr": workload.lr, "weight_decay": workload.weight_decay}
    options |= {
        "epochs": 10**6,
        "warmup_steps": 0,
        "device": device.type,
        "run_dir": Path(tempfile.mkdtemp(dir=folder), "run"),
    }
    world = launcher.World(rank, rank, ranks, ranks)
    run = train.Run(config.Config(**options), world, device)

    def block() -> None:
        train.train_epoch(run)
        run.progress.complete_epoch()

    return block


def take_turns(loops: dict[str, Callable[[], None]], blocks: int) -> Record:
    """Train blocks in turn, after a first one of each that does not count, and compare those of the same turn."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(blocks + 1):
        first = turn % len(loops)
        for name in (*[*loops][first:], *[*loops][:first]):
            dist.barrier()
            began = time.perf_counter()
            loops[name]()
            dist.barrier()
            if turn:
                seconds[name].append((time.perf_counter() - began) / chosen_workload().steps)
    return {
        name: {"seconds": statistics.median(own), **ratio_to(own, seconds[GENERATED])} for name, own in seconds.items()
    }


def ratio_to(own: list[float], generated: list[float]) -> Record:
    """Return the median and the quartiles of the ratio of samples per second to those of the generated project."""
    ratios = (other / mine for mine, other in zip(own, generated, strict=True))
    low, median, high = statistics.quantiles(ratios)
    return {"ratio": {"median": median, "low": low, "high": high}}


if __name__ == "__main__":
    typer.run(main)
