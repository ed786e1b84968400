"""What the ranks do together. All ranks must call each of these, in the same order, or they wait until --timeout."""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..config import Config
from .exits import UserError
from .sampling import Stream
from .seeding import code_digests
from .state import buffers_of, fingerprint, persistent_buffers

FROM_RANK_0 = ("run_dir", "resume")  # options that no other rank uses

ROUNDING = 1e-3  # of the largest value of a weight, far more than different processors round differently
STILL_AT_WORK = 0.3  # seconds after which rank 0 lets the others know
BATCH = SimpleNamespace(counts=True, accum_steps=1)  # of what compute() gets, for gather_with_grad()

T = TypeVar("T")


def reduce_tensor(tensor: Tensor, op: Literal["mean", "sum"] = "mean") -> Tensor:
    """Sum a tensor over all ranks, or take the mean; every rank gets the result.

    Args:
        tensor: of the same shape and dtype on every rank, on the rank's device. It stays as it is.
        op: "sum", or "mean": the sum divided by the number of ranks. If ranks hold different numbers of samples, a
            mean of their means is wrong: reduce sums and counts with "sum", then divide.

    Returns:
        A new tensor without gradient; of float32 for half precision, whose sums would overflow or round.
    """
    if op not in ("sum", "mean"):
        raise UserError(f'reduce_tensor() takes the op "sum" or "mean", not {op!r}')
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    reduced = tensor.detach().to(torch.float32 if half else tensor.dtype, copy=True)
    if dist.get_world_size() > 1:
        dist.all_reduce(reduced, op=dist.ReduceOp.SUM)
    return reduced / dist.get_world_size() if op == "mean" else reduced


def gather_with_grad(rows: Tensor) -> tuple[Tensor, int]:
    """Return the rows of all ranks, in the order of the ranks, and the place of the first own row.

    For a loss that compares own rows with those of the whole batch. The backward pass sums the gradients of all ranks,
    so the loss must use the rows on every rank. Rows are of shape (number, ...); only the number may differ between
    ranks. In an evaluation, a batch that does not count reaches no other rank, and comes last on its own. On a GPU, the
    CPU waits for the numbers.

    Raises UserError on every rank if shapes or dtypes differ, or if --accum-steps splits the batch of a training step.
    """
    if not isinstance(rows, Tensor) or not rows.dim():
        found = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else f"type {type(rows).__name__}"
        raise UserError(f"task.py: gather_with_grad() takes a tensor with a row for each sample, not one of {found}")
    if BATCH.accum_steps > 1 and torch.is_grad_enabled():
        wrong = f"--accum-steps {BATCH.accum_steps} does not go with gather_with_grad() in task.py"
        raise UserError(f"{wrong}, which gathers one micro-batch, not the whole batch: give --accum-steps 1")
    if dist.get_world_size() == 1:
        return rows, 0
    own = rows if BATCH.counts else rows[:0]
    numbers = numbers_of_rows(own)
    gathered, first = GatheredRows.apply(own, numbers), sum(numbers[: dist.get_rank()])
    return (gathered, first) if BATCH.counts else (torch.cat([gathered, rows]), len(gathered))


def numbers_of_rows(rows: Tensor) -> list[int]:
    """Return how many rows each rank has. Raises UserError on every rank if their shapes or dtypes differ."""
    form = f"{tuple(rows.shape[1:])} of {rows.dtype}"
    digest = int.from_bytes(form.encode(), "big") % (2**61 - 1)
    own = torch.tensor([len(rows), digest], device=rows.device)
    of_ranks = own.new_empty(dist.get_world_size(), 2)
    dist.all_gather([*of_ranks], own)
    numbers, digests = of_ranks.T.tolist()
    if len({*digests}) > 1:  # on every rank, so all of them exchange the forms
        found = " and ".join(dict.fromkeys(gather(form)))
        raise UserError(f"task.py: gather_with_grad() takes rows of the same shape and dtype on all ranks, not {found}")
    return numbers  # type: ignore[no-any-return]


class GatheredRows(torch.autograd.Function):
    """The rows of all ranks, whose gradient is the sum of those on all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, numbers: list[int]) -> Tensor:
        ctx.numbers = numbers
        padded = rows.new_zeros(max(numbers), *rows.shape[1:])  # a collective takes equal shapes
        padded[: len(rows)] = rows
        gathered = padded.new_empty(len(numbers), *padded.shape)
        dist.all_gather([*gathered], padded)
        return torch.cat([part[:number] for part, number in zip(gathered, numbers, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return reduce_tensor(gradient.contiguous(), "sum").split(ctx.numbers)[dist.get_rank()].to(gradient.dtype), None


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in the order of the ranks, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_objects(value: T) -> list[T]:
    """Return the values of all ranks on rank 0, in the order of the ranks, and nothing on others."""
    main = dist.get_rank() == 0
    values: list[Any] = [None] * dist.get_world_size() if main else []
    dist.gather_object(value, values if main else None, dst=0)
    return values


def gather_to_rank_zero(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stack the tensors of all ranks, in the order of the ranks. Rank 0 gets them, on the CPU, and the others no rows.

    Names, shapes and dtypes are the same on every rank. All travel as bytes, in a single exchange.
    """
    if not tensors:
        return {}
    if dist.get_world_size() == 1:
        return {name: tensor.detach().cpu()[None] for name, tensor in tensors.items()}
    own = torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors.values()])
    main = dist.get_rank() == 0
    rows = own.new_empty(dist.get_world_size() if main else 0, len(own))
    dist.gather(own, [*rows] if main else None, dst=0)
    stacked = {}
    parts = rows.cpu().split([tensor.nbytes for tensor in tensors.values()], dim=1)
    for (name, tensor), part in zip(tensors.items(), parts, strict=True):
        aligned = part.clone(memory_format=torch.contiguous_format)  # as a view of another dtype must be
        stacked[name] = aligned.view(tensor.dtype).view(len(rows), *tensor.shape)
    return stacked


def on_rank_zero(work: Callable[[], T]) -> T:
    """Run a function on rank 0 alone. It may take longer than --timeout.

    Every rank returns its result, or raises its UserError or OSError as UserError.
    """
    outcome: list[Any] = [False, None, None]  # whether it is done, the result, the error
    with ThreadPoolExecutor(max_workers=1) as thread:
        started = thread.submit(work) if dist.get_rank() == 0 else None
        while not outcome[0]:
            if started:
                outcome = outcome_of(started)
            dist.broadcast_object_list(outcome, src=0)
    if outcome[2] is not None:
        raise UserError(outcome[2])
    result: T = outcome[1]
    return result


def on_each_node(work: Callable[[], object], *, leads: bool) -> None:
    """Run a function on the ranks that lead their nodes. It may take longer than --timeout.

    Every rank returns when all are done, or raises the UserError or OSError of one as UserError.
    """
    of_ranks: list[tuple[bool, str | None]] = [(False, None)]
    with ThreadPoolExecutor(max_workers=1) as thread:
        started = thread.submit(work) if leads else None
        while not all(done for done, _ in of_ranks):
            done, _, problem = outcome_of(started) if started else (True, None, None)
            of_ranks = gather((done, problem))
    raise_first(problem for _, problem in of_ranks)


def outcome_of(work: Future[Any]) -> list[Any]:
    """Wait for some time, and return whether the work is done, its result, and its UserError or OSError as text."""
    wait([work], timeout=STILL_AT_WORK)
    if not work.done():
        return [False, None, None]
    try:
        return [True, work.result(), None]
    except (UserError, OSError) as error:
        return [True, None, str(error)]


def on_all_ranks(work: Callable[[], T]) -> T:
    """Do something on every rank. If one has a UserError or OSError, all raise it, so that none is left waiting."""
    results: list[T] = []
    problem = None
    try:
        results.append(work())
    except (UserError, OSError) as error:
        problem = str(error)
    raise_first(gather(problem))
    return results[0]


def raise_first(problems: Iterable[str | None]) -> None:
    """Raise the first of the problems of all ranks as UserError, if there is one."""
    of_ranks = [*problems]
    for rank, problem in enumerate(of_ranks):
        if problem is not None:
            raise UserError(f"rank {rank}: {problem}" if len(of_ranks) > 1 else problem)


@contextmanager
def averaged_buffers(model: nn.Module, unequal: dict[str, bool] | None = None) -> Iterator[None]:
    """Inside, BatchNorm's running statistics are their mean over all ranks; afterwards each rank has its own again.

    So are other persistent buffers in which the ranks differ, which are given or found. Doing this to evaluate and to
    save, instead of broadcasting rank 0's before every forward pass as DistributedDataParallel does by default, saves
    up to 40 % of the step time of a small network.
    """
    statistics, others = buffers_of(model)
    unequal = unequal_buffers(model) if unequal is None else unequal
    found = [*statistics.values(), *(each for name, each in others.items() if each is not None and unequal.get(name))]
    found = [torch.view_as_real(buffer) if buffer.is_complex() else buffer for buffer in found]
    buffers = [buffer for buffer in found if buffer.is_floating_point() and buffer.itemsize > 1]
    own = [buffer.clone() for buffer in buffers]
    if buffers:  # all of them in a single all-reduce, of parts that cannot overflow
        means = reduce_tensor(torch.cat([buffer.flatten() for buffer in buffers]) / dist.get_world_size(), "sum")
        for buffer, mean in zip(buffers, means.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))
    yield
    for buffer, value in zip(buffers, own, strict=True):
        buffer.copy_(value)


def unequal_buffers(model: nn.Module) -> dict[str, bool]:
    """Return the persistent buffers, but for running statistics, in which ranks differ, and whether a mean makes sense.

    A model without such buffers needs no exchange.
    """
    _, others = buffers_of(model)
    if not others:
        return {}
    of_ranks = gather({name: fingerprint(buffer) for name, buffer in others.items()})
    unequal = {}
    for name in sorted({*chain(*of_ranks)}):
        kinds, digests = zip(*(each.get(name, ("", "")) for each in of_ranks), strict=True)
        if len({*digests}) > 1:
            unequal[name] = len({*kinds}) == 1 and kinds[0] != ""
    return unequal


def gather_buffers(model: nn.Module, names: Collection[str]) -> list[dict[str, Tensor | None]]:
    """Return buffers of each rank, whatever their shapes, on the CPU of rank 0; others get none. One rank at a time."""
    buffers, of_ranks = persistent_buffers(model), []
    own = {name: buffers[name].detach().cpu().clone() if name in buffers else None for name in names}
    for rank in range(dist.get_world_size() if names else 0):
        held = [own if rank == dist.get_rank() else {}]
        dist.broadcast_object_list(held, src=rank)
        of_ranks += held if dist.get_rank() == 0 else []
    return of_ranks


def check_weights_agree(model: nn.Module, largest: dict[str, float]) -> None:
    """Raise UserError on every rank if ranks have other weights, by more than they may round differently.

    Of each tensor, the largest absolute value is given, as largest_values() returns it.
    """
    weights = {name: weight.device for name, weight in model.named_parameters() if name in largest}
    if not weights or dist.get_world_size() == 1:
        return
    own = torch.tensor([largest[name] for name in weights], dtype=torch.float64, device=next(iter(weights.values())))
    ends = torch.stack([own, -own])
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    differing = (ends[0] + ends[1] > ROUNDING * ends[0]).tolist()  # sum() may be in float32, in mixed precision
    if any(differing):
        found = ", ".join([name for name, differs in zip(weights, differing, strict=True) if differs][:5])
        advice = "change weights by the optimizer alone, or alike on all ranks: broadcast what rank 0 has computed"
        raise UserError(f"ranks have different weights: {found}; {advice}")


def check_ranks_agree(config: Config, digests: Callable[[], dict[str, str | None]] = dict, /, **sets: Sized) -> None:
    """Compare this rank with all others, in one exchange. Raises UserError on every rank if one differs.

    The message names each difference to rank 0, and the first rank that has it. Of samples of the sets, digests()
    returns digests: if they differ, they are made once more, as samples that are new each time tell nothing.
    """
    own = digests()
    (first, _), *rest = of_ranks = gather((description(config, sets), own))
    others = [other for other, _ in rest]
    found: dict[str, str] = {}
    for rank, other in enumerate(others, start=1):
        for what in first | other:
            if first.get(what) != other.get(what):
                found.setdefault(what, f"{what} is {first.get(what)} on rank 0 and {other.get(what)} on rank {rank}")
    if found:
        raise UserError(f"the ranks must be the same: {'; '.join(found.values())}")
    differing = [name for name in own if len({digests[name] for _, digests in of_ranks} - {None}) > 1]
    if differing and all(gather(digests() == own)):
        wrong = f"data.py: the {differing[0]} set has not the same samples on all ranks"
        raise UserError(f"{wrong}: load_data() must return all samples on every rank, which gets its part of them")


def description(config: Config, sets: dict[str, Sized]) -> dict[str, str]:
    """Return what this rank runs with: options, lengths of the data, versions, and the code as short digests."""
    chosen = {name: value for name, value in asdict(config).items() if name not in FROM_RANK_0}
    options = {f"--{name.replace('_', '-')}": value for name, value in chosen.items()}
    what = {name: "number of shards" if isinstance(each, Stream) else "length" for name, each in sets.items()}
    lengths = {f"the {what[name]} of the {name} set": len(each) for name, each in sets.items()}
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    return {what: str(value) for what, value in (options | lengths | versions | code_digests()).items()}
