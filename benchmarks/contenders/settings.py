"""What all contenders have in common, and what --tuned changes, in the terms of plain PyTorch.

Tuned are the settings that make a difference and that users of each contender can reach: threads that do not interrupt
each other, no broadcast of buffers before each forward pass, gradients as views of DDP's buckets, a fused optimizer,
whole batches out of the dataset, and no more logging than the line that is wanted.
"""

import argparse
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from .workloads import SEED, Samples, Workload, chosen_workload

RANKS = 2
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The command line of a contender."""

    out: Path  # where its checkpoints go
    tuned: bool
    static_graph: bool = False


def read_options() -> Options:
    """Read the command line, and let threads that are made from now on not interrupt each other where it is tuned."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tuned", action="store_true")
    options = Options(**vars(parser.parse_args()))
    if options.tuned:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return options


def among_ranks(train: Callable[[Options, Workload], None]) -> None:
    """Train the chosen workload, as one of the ranks that torchrun has started."""
    options, workload = read_options(), chosen_workload()
    dist.init_process_group("gloo")
    # A model that outlived the group could hang in its destructor: it stays inside the function.
    train(options, workload)
    dist.destroy_process_group()


def ddp_options(tuned: bool, static_graph: bool = False) -> dict[str, Any]:
    """Arguments of DistributedDataParallel."""
    if not tuned:
        return {}
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # in torch 2.13
    buffers = "forward_sync_buffers" if renamed else "broadcast_buffers"
    return {buffers: False, "gradient_as_bucket_view": True, "static_graph": static_graph}


def plain_ddp(
    options: Options, workload: Workload
) -> tuple[DistributedDataParallel, AdamW, DataLoader[tuple[Tensor, Tensor]], DistributedSampler[int]]:
    """What a plain loop trains with: the network, its optimizer, its loader, and the sampler that it shuffles with."""
    torch.manual_seed(SEED)
    model = DistributedDataParallel(workload.build_model(), **ddp_options(options.tuned, options.static_graph))
    optimizer = make_optimizer(model.parameters(), workload, options.tuned)
    dataset = training_set(workload, options.tuned)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    return model, optimizer, make_loader(dataset, workload, options.tuned, sampler), sampler


def save(model: DistributedDataParallel, optimizer: AdamW, path: Path) -> None:
    """Write a checkpoint, as a plain loop does."""
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)


def make_optimizer(weights: Iterable[nn.Parameter], workload: Workload, tuned: bool) -> AdamW:
    """The optimizer, with a constant learning rate."""
    return AdamW(weights, lr=workload.lr, weight_decay=workload.weight_decay, fused=True if tuned else None)


def training_set(workload: Workload, tuned: bool) -> Samples:
    """The training set: sample by sample, as tutorials load it, or by whole batches."""
    batches = workload.load_data()[0]
    return batches if tuned else Samples(batches.inputs, batches.labels)


def make_loader(
    dataset: Samples, workload: Workload, tuned: bool, sampler: Sampler[int] | None = None
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Load the batches of a rank, in the order of a sampler or shuffled."""
    collate: dict[str, Any] = {"collate_fn": as_it_is} if tuned else {}
    return DataLoader(dataset, workload.batch // RANKS, shuffle=sampler is None, sampler=sampler, **collate)


def as_it_is(batch: T) -> T:
    """Leave alone a batch that the dataset has made already."""
    return batch
