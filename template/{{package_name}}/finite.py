"""Steps whose gradients are inf or NaN: left out on all ranks alike, without a trace and without waiting for a GPU."""

import logging
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from .checkpoint import Progress
from .exits import Diverged


class FiniteSteps:
    """Judges each step by the norm of its gradients, which are those of all ranks: so all ranks judge the same."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device, left_out: int) -> None:
        """Begin after some steps in a row that were left out."""
        # BatchNorm's running statistics see a bad batch before any gradient does.
        norms = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self.buffers = [buffer for module in norms for buffer in module.buffers(recurse=False)]
        self.before = [buffer.clone() for buffer in self.buffers]
        # How many in a row up to now, and how many since report().
        self.left_out = torch.tensor([float(left_out), 0.0], dtype=torch.float64, device=device)
        self.last_left_out = left_out > 0  # where it asks
        # Adam, where it is fused, can leave a step out on the GPU. Others must wait for the norm; on a CPU it is there.
        fused = isinstance(optimizer, Adam) and getattr(optimizer, "_step_supports_amp_scaling", False)
        self.asks = device.type == "cpu" or not fused

    def judge(self, norm: Tensor, optimizer: Optimizer) -> bool:
        """Leave the step out where the norm of its gradients is not finite. Gives whether to call optimizer.step()."""
        take = not self.asks or math.isfinite(norm)  # where it does not ask, the GPU decides
        if take and self.asks:
            if self.last_left_out:  # else the number is 0 already, and to write it takes 15 us
                self.left_out[0] = 0
        else:
            bad = ~norm.isfinite()
            self.left_out.add_(bad)
            self.left_out[0].mul_(bad)
            for before, buffer in zip(self.before, self.buffers, strict=True):
                buffer.copy_(torch.where(bad, before, buffer))
            if not self.asks:
                optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.last_left_out = not take
        if self.buffers:
            torch._foreach_copy_(self.before, self.buffers)
        return take

    def report(self, progress: Progress, left_out: list[float], allowed: int, advice: Callable[[], str]) -> None:
        """Log how many steps were left out since this was called last, where there are any.

        Raises Diverged, on all ranks, where it is as many as allowed in a row. Of left_out, the sum over all ranks is
        given, so that they decide alike; advice() tells what to do.
        """
        progress.left_out, recently = (int(number / dist.get_world_size()) for number in left_out)
        self.left_out[1] = 0
        if recently:
            logging.info("step %d  steps left out, since their gradients were not finite: %d", progress.step, recently)
        if progress.left_out >= allowed:
            steps = f"{progress.left_out} steps in a row, up to step {progress.step}"
            raise Diverged(f"the gradients of {steps}, were not finite: {advice()}")


def gradient_norm(optimizer: Optimizer, largest: float) -> Tensor:
    """The L2 norm of all gradients together, which are scaled down to the largest allowed norm (0: as they are)."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if largest:
        return nn.utils.clip_grad_norm_(weights, largest)
    # As nn.utils.get_total_norm() does it, without the 25 us that it takes to sort gradients by device.
    norms = torch._foreach_norm([gradient for weight in weights if (gradient := weight.grad) is not None])
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
