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


def accumulated_gradients(rank: int, project: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train an epoch with gradients in DDP's buckets, and one with fresh ones for each step.

    Returns for both the gradients of each step as integers, for they tell 0.0 from -0.0, the most bytes of gradients
    beside the buckets between two micro-batches, and the bytes that they held before each micro-batch.
    """
    sys.path.insert(0, str(project))
    train: Any = importlib.import_module("train")
    build_model, compute, mean = train.build_model, train.task.compute, train.meter.Mean

    def build_more() -> Any:
        model = build_model()
        model.never = torch.nn.Parameter(torch.ones(3))
        return model

    def compute_more(model: Any, batch: Any) -> dict[str, Any]:
        means = compute(model, batch)
        more: dict[str, Any] = means | {"loss": mean(means["loss"].sum - 0.0 * model.never.sum(), means["loss"].count)}
        return more

    train.build_model, train.task.compute = build_more, compute_more
    found: dict[str, Any] = {}
    for kind in ("in buckets", "fresh"):
        _, run = make_run(rank, project, "ddp_project", options | {"run_dir": options["run_dir"] / kind})
        if kind == "fresh":
            run.ddp.module.in_buckets = False
            run.ddp.zero_grad()
        found[kind] = {"steps": [], "beside": 0, "held": []}
        _watch_gradients(run, found[kind])
        train.train_epoch(run)
    return found


def _watch_gradients(run: Any, found: dict[str, Any]) -> None:
    between: dict[int, int] = {}  # places and bytes of the gradients before each micro-batch

    def before_micro_batch(*_: Any) -> None:
        storages = [each.grad.untyped_storage() for each in run.model.parameters() if each.grad is not None]
        between.update((storage.data_ptr(), storage.nbytes()) for storage in storages)

    def before_step(*_: Any) -> None:
        gradients = [each.grad for each in run.model.parameters()]
        buckets = {gradient.untyped_storage().data_ptr() for gradient in gradients}
        beside = sum(size for place, size in between.items() if place not in buckets)
        between.clear()
        found["beside"] = max(found["beside"], beside)
        found["steps"].append([gradient.clone().view(torch.int32) for gradient in gradients])

    def before_ddp(*_: Any) -> None:
        storages = [each.grad.untyped_storage() for each in run.model.parameters() if each.grad is not None]
        found["held"].append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))

    run.ddp.register_forward_pre_hook(before_ddp)
    run.model.register_forward_pre_hook(before_micro_batch)
    run.optimizer.register_step_pre_hook(before_step)
