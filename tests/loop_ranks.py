"""What the ranks of tests of the loop do: they call functions of a rendered train.py in a real process group."""

import importlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing as mp


def on_two_ranks(work: Any, folder: Path, *arguments: Any) -> list[Any]:
    """Run work(rank, *arguments) on two Gloo processes, and return what it gives on each."""
    mp.spawn(_rank, (work, folder, arguments), nprocs=2)
    return [torch.load(folder / f"result{rank}.pt", weights_only=False) for rank in range(2)]


def _rank(rank: int, work: Any, folder: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=600), rank=rank, world_size=2)
    torch.save(work(rank, *arguments), folder / f"result{rank}.pt")
    dist.destroy_process_group()


def make_run(rank: int, project: Path, package: str, options: dict[str, Any], device: str = "cpu") -> tuple[Any, Any]:
    """Import the project's train.py, and set up a run of two ranks with these options."""
    sys.path.insert(0, str(project))
    train = importlib.import_module("train")
    config = importlib.import_module(f"{package}.config").Config(**options)
    world = importlib.import_module(f"{package}.runtime.launcher").World(rank, rank, 2, 2)
    return train, train.Run(config, world, torch.device(device))


def collectives_of_an_epoch(rank: int, project: Path, options: dict[str, Any]) -> dict[str, int]:
    """Count the collectives that torch's profiler sees while an epoch is trained."""
    train, run = make_run(rank, project, "ddp_project", options)
    with torch.profiler.profile() as profile:
        assert train.train_epoch(run)
    return {event.key: event.count for event in profile.key_averages() if event.key.startswith("gloo:")}


def weights_of_an_epoch_on_a_gpu(rank: int, project: Path, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Train an epoch, on a GPU that both ranks share, and return the weights and BatchNorm's statistics."""
    train, run = make_run(rank, project, "ddp_project", options, "cuda:0")
    train.train_epoch(run)
    return {name: value.cpu() for name, value in run.model.state_dict().items()}
