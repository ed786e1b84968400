"""Watches a rank from inside while it trains, without changing what it computes."""

import functools
import hashlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from generator.check.train.judgement import Loss, Observation, Step


def observe() -> Observation:
    """Begin to watch this process."""
    seen = Observation()
    register_optimizer_step_post_hook(functools.partial(note_step, seen))
    watch_loss(seen)
    watch_scaler(seen)
    return seen


def note_step(seen: Observation, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """What torch calls after each step of each optimizer."""
    whole = hashlib.sha256()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            whole.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    processes: Any = dist.distributed_c10d._get_default_group()
    collectives = processes._get_sequence_number_for_group()
    seen.steps.append(Step(whole.hexdigest(), collectives, len(seen.losses)))


def watch_loss(seen: Observation) -> None:
    """Note the value of each cross-entropy."""
    given = torch.nn.functional.cross_entropy

    def noted(logits: torch.Tensor, labels: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = given(logits, labels, *args, **kwargs)
        total = loss.sum().item()
        mean = total if kwargs.get("reduction", "mean") == "mean" else total / len(labels)
        seen.losses.append(Loss(loss.requires_grad, mean, len(labels)))
        return loss

    torch.nn.functional.cross_entropy = noted  # type: ignore[assignment]


def watch_scaler(seen: Observation) -> None:
    """Note the scale after each update."""
    given = torch.amp.GradScaler.update

    def noted(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        given(self, *args, **kwargs)
        if self.is_enabled():
            seen.scales.append((self.get_scale(), self._get_growth_tracker()))

    torch.amp.GradScaler.update = noted  # type: ignore[method-assign]
