"""Watches a rank from inside while it trains, without changing what it computes."""

import functools
import hashlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from generator.check.train.verification import Loss, RankTrace, Step


def trace() -> RankTrace:
    seen = RankTrace()
    register_optimizer_step_post_hook(functools.partial(note_step, seen))
    watch_loss(seen)
    watch_scaler(seen)
    return seen


def note_step(seen: RankTrace, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    processes: Any = dist.distributed_c10d._get_default_group()
    collectives = processes._get_sequence_number_for_group()
    whole = hashlib.sha256()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            seen.sharded = hasattr(weight, "to_local")
            tensor = weight.detach().to_local() if seen.sharded else weight.detach()
            whole.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    seen.steps.append(Step(whole.hexdigest(), collectives, len(seen.losses)))


def watch_loss(seen: RankTrace) -> None:
    """Note the value of each cross-entropy and squared error, and how many labels or numbers it is over."""
    for name in ("cross_entropy", "mse_loss"):
        setattr(torch.nn.functional, name, noting(seen, getattr(torch.nn.functional, name)))


def noting(seen: RankTrace, given: Any) -> Any:
    def noted(found: torch.Tensor, wanted: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = given(found, wanted, *args, **kwargs)
        total, counted = loss.sum().item(), int((wanted != kwargs.get("ignore_index", -100)).sum())
        mean = total if kwargs.get("reduction", "mean") == "mean" else total / max(1, counted)
        seen.losses.append(Loss(loss.requires_grad, mean, counted))
        return loss

    return noted


def watch_scaler(seen: RankTrace) -> None:
    given = torch.amp.GradScaler.update

    def noted(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        given(self, *args, **kwargs)
        if self.is_enabled():
            seen.scales.append((self.get_scale(), self._get_growth_tracker()))

    torch.amp.GradScaler.update = noted  # type: ignore[method-assign]
