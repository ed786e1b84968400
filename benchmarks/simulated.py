"""Ranks that are not there: one process does what one of many would, so that what many cost can be measured."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn

# Channels of the BatchNorm layers of ResNet-50: 53 layers, whose running statistics are 53,120 numbers.
RESNET_50 = [64]
for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
    RESNET_50 += [width, width, 4 * width] * blocks + [4 * width]


def norms_of_resnet_50() -> nn.Module:
    """All of ResNet-50 that differs from rank to rank; what all ranks share costs the same for any number of them."""
    return nn.Sequential(*map(nn.BatchNorm2d, RESNET_50))


@contextmanager
def one_of(world_size: int, rank: int = 0) -> Iterator[None]:
    """Inside, torch.distributed answers as if all ranks had sent what this one sends. Nothing takes time on the way."""

    def gather(own: Tensor, rows: list[Tensor] | None = None, dst: int = 0) -> None:
        for row in rows or ():
            row.copy_(own)

    def all_gather_object(values: list[Any], value: Any) -> None:
        sent = pickle.dumps(value)
        values[:] = [pickle.loads(sent) for _ in values]

    def all_reduce(tensor: Tensor, op: Any = None) -> None:
        tensor.mul_(world_size)

    def broadcast(values: list[Any], src: int) -> None:
        if rank != src:
            values[0] = True  # what rank 0 alone does is done

    with mock.patch.multiple(
        dist,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
        gather=gather,
        all_gather_object=all_gather_object,
        all_reduce=all_reduce,
        broadcast_object_list=broadcast,
    ):
        yield


def progress_of(package: Callable[[str], Any], config: Any) -> Any:
    """The progress of a run of a project, before its first step, on 1,437 samples."""
    world = package("runtime.launcher").DistEnv(0, 0, 1, 1)
    sampler = package("runtime.sampling").ResumableDistributedSampler(1437, 64, world, seed=0)
    return package("runtime.metrics").Progress(config, sampler)
