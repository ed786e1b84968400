"""Examines the ranks, with --doctor: they meet as in a run, and do what ranks of a run do together."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..config import Config
from . import collectives, distributed, doctor_node
from .devices import unused_devices
from .exits import ExitCode, UserError
from .launcher import DistEnv
from .watchdog import STATUS

TIMEOUT = 60  # seconds that a rank may wait for another, which may import torch slowly, unless --timeout says
TIMES = 3  # of each measurement, of which the fastest counts
MIB = 2**20


class Fault(UserError):
    """An exchange fails on this rank, and maybe not on all."""

    should_report = True


def examine_ranks(config: Config) -> int:
    """Start the ranks, or join them, and let them exchange. Returns the exit code: 2 if a run would fail."""
    return distributed.launch(exchange, replace(config, timeout=config.timeout or TIMEOUT))


def exchange(config: Config, env: DistEnv, device: torch.device) -> ExitCode:
    """Do what ranks do together, and let rank 0 tell how long it takes. Raises UserError if something fails."""
    try:
        collectives.check_ranks_agree(config)
        unused = unused_devices(config.device) if device.type == "cpu" and env.local_rank == 0 else ""
        if findings := [f"error: {found}" for found in collectives.gather(unused) if found]:
            doctor_node.print_findings(findings if env.is_rank_zero else [])
            return ExitCode.REFUSED
        if device.type == "mps":
            device = torch.device("cpu")  # a process alone sends no tensors of MPS
        rows = [*pairs(env, device), *together(config, env, device)]
        average_gradients(config, env, device)
    except RuntimeError as error:  # as torch raises what goes wrong between ranks
        reason = " ".join(str(error).partition("Exception raised from")[0].split())
        where = f"rank {env.rank} on {socket.gethostname()}: {STATUS.phase} fails"
        raise Fault(f"{where} ({reason}): see how these ranks reach each other; NCCL_DEBUG=INFO tells more") from error
    if env.is_rank_zero:
        print(f"world size {env.world_size}, {dist.get_backend()}:", *rows, "sound: a run can start here", sep="\n")
    return ExitCode.DONE


def pairs(env: DistEnv, device: torch.device) -> Iterator[str]:
    """Send from each rank to each other rank. Yields a row for the slowest. Raises UserError if numbers are wrong."""
    found = []
    for distance in range(1, env.world_size):
        to, source = (env.rank + distance) % env.world_size, (env.rank - distance) % env.world_size
        STATUS.phase = f"an exchange with ranks {to} and {source}"

        def shift(own: Tensor, to: int = to, source: int = source) -> Tensor:
            received = torch.empty_like(own)
            both = [dist.P2POp(dist.isend, own, to), dist.P2POp(dist.irecv, received, source)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            return received

        refuse_wrong(float(shift(numbers(1, env, device))), source + 1)
        latency, duration = (seconds(shift, numbers(count, env, device)) for count in (1, MIB // 4))
        found.append((duration, latency, source, env.rank))
    if slowest := max((pair for of_rank in collectives.gather(found) for pair in of_rank), default=None):
        duration, latency, source, to = slowest
        yield row(f"slowest pair: rank {source} to {to}", latency, MIB, duration)


def together(config: Config, env: DistEnv, device: torch.device) -> Iterator[str]:
    """Do what all ranks do together. Yields a row for each. Raises UserError if a result is wrong."""
    size, rank = env.world_size, env.rank
    all_ranks = size * (size + 1) / 2  # the sum of what each rank has

    def broadcast(own: Tensor) -> Tensor:
        received = own.clone()
        dist.broadcast(received, src=0)
        return received

    def gather(own: Tensor) -> Tensor:
        rows = collectives.gather_to_rank_zero({"own": own})["own"]
        return rows.sum(dim=0) if rank == 0 else torch.full((1,), all_ranks)

    def all_gather(own: Tensor) -> Tensor:
        return torch.tensor([float(sum(collectives.gather(float(own[0]))))])

    def from_main(own: Tensor) -> Tensor:
        return torch.tensor([collectives.on_rank_zero(lambda: float(own[0]))])

    trials: list[tuple[str, Callable[[Tensor], Tensor], float, int]] = [
        ("all-reduce", lambda own: collectives.reduce_tensor(own, "sum"), all_ranks, config.bucket_mib),
        ("broadcast", broadcast, 1, config.bucket_mib),
        ("gather", gather, all_ranks, 1),
        ("all-gather of objects", all_gather, all_ranks, 0),
        ("broadcast of objects", from_main, 1, 0),
    ]
    for name, work, right, mib in trials:
        STATUS.phase = name
        refuse_wrong(float(work(numbers(1, env, device))[0]), right)
        latency = seconds(work, numbers(1, env, device))
        yield row(name, latency, mib * MIB, seconds(work, numbers(mib * MIB // 4, env, device)) if mib else 0)


def average_gradients(config: Config, env: DistEnv, device: torch.device) -> None:
    """Let DistributedDataParallel average gradients as in a run. Raises UserError if they are wrong."""
    STATUS.phase = "the average of gradients"
    layer = nn.Linear(1, 1, bias=False, device=device)
    ddp = distributed.wrap(layer, replace(config, compile=False))
    ddp(numbers(1, env, device)[None]).sum().backward()
    assert layer.weight.grad is not None
    refuse_wrong(float(layer.weight.grad), (env.world_size + 1) / 2)


def numbers(count: int, env: DistEnv, device: torch.device) -> Tensor:
    """Return numbers that tell this rank from others."""
    return torch.full((count,), env.rank + 1.0, device=device)


def refuse_wrong(result: float, right: float) -> None:
    """Compare a result with what it must be, on all ranks. Raises UserError if it is another one somewhere."""
    for rank, found in enumerate(collectives.gather(abs(result - right) > 0.01 * right)):
        if found:
            raise UserError(f"{STATUS.phase} gives rank {rank} wrong numbers: update the driver, or try --backend gloo")


def seconds(work: Callable[[Tensor], Tensor], own: Tensor) -> float:
    """Return how long something takes that all ranks do."""
    taken = []
    for _ in range(TIMES):
        dist.barrier()
        begin = time.perf_counter()
        work(own)[0].item()  # waits for a GPU
        taken.append(time.perf_counter() - begin)
    return min(taken)


def row(name: str, latency: float, size: int, duration: float) -> str:
    """Return a line of the table: latency, and bandwidth if much was sent (bytes, seconds)."""
    bandwidth = f"{size / duration / MIB:8.0f} MiB/s" if size else ""
    return f"  {name:28}{latency * 1e3:8.3f} ms{bandwidth}"
