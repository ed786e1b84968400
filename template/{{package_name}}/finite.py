"""Steps whose gradients are inf or NaN: left out on all ranks alike, without a trace and without waiting for a GPU."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class FiniteSteps:
    """Judges each step by the norm of its gradients, which are those of all ranks: so all ranks judge the same."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device, left_out: int) -> None:
        """Begin after some steps in a row that were left out."""
        # BatchNorm's running statistics see a bad batch before any gradient does.
        self.buffers = list(model.buffers())
        self.before = [buffer.clone() for buffer in self.buffers]
        self.left_out = torch.tensor([float(left_out), 0.0], device=device)  # in a row up to now; since counted()
        # Fused optimizers can leave a step out on the GPU, as GradScaler has them do. Others must wait for the norm; on
        # a CPU it is there.
        self.asks = device.type == "cpu" or not getattr(optimizer, "_step_supports_amp_scaling", False)

    def begin(self) -> None:
        """Remember what the forward passes of a step change."""
        if self.buffers:
            torch._foreach_copy_(self.before, self.buffers)

    def judge(self, norm: Tensor, optimizer: Optimizer) -> bool:
        """Leave the step out where the norm of its gradients is not finite. Gives whether to call optimizer.step()."""
        bad = ~norm.isfinite()
        if self.asks and not bad:
            self.left_out[0] = 0
            return True
        self.left_out.add_(bad)
        self.left_out[0].mul_(bad)
        for before, buffer in zip(self.before, self.buffers, strict=True):
            buffer.copy_(torch.where(bad, before, buffer))
        if not self.asks:
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        return not self.asks

    def counted(self) -> tuple[int, int]:
        """How many steps were left out in a row up to now, and how many since this was asked last."""
        in_a_row, recently = map(int, self.left_out.tolist())
        self.left_out[1] = 0
        return in_a_row, recently


def gradient_norm(weights: Iterable[Tensor], largest: float) -> Tensor:
    """The L2 norm of all gradients together, which are scaled down to the largest allowed norm (0: as they are)."""
    if largest:
        return nn.utils.clip_grad_norm_(weights, largest)
    return nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
