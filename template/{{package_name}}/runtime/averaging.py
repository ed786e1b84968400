"""An exponential moving average of the weights, which an evaluation uses in their place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class ExponentialMovingAverage:
    """The average of the weights that the optimizer steps, in float32 at least. All ranks compute the same one.

    It begins as a copy. After each step that was taken, average = decay * average + (1 - decay) * weights, with a decay
    of min(--ema-decay, (1 + n) / (10 + n)) after n others, as in TensorFlow's tf.train.ExponentialMovingAverage. With a
    constant 0.999, the first weights would still be 64 % of it after 440 steps.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, decay: float) -> None:
        """Begin with the weights that the model has, and follow the optimizer."""
        self.optimizer = optimizer
        self.decay = decay
        self.places = [place for place, weight in enumerate(self._stepped()) if weight.requires_grad]
        self.weights = self._followed()  # the model's own, also if the optimizer comes to step copies of them
        names: dict[Tensor, list[str]] = {weight: [] for weight in self.weights}
        for name, weight in model.named_parameters(remove_duplicate=False):  # tied weights have several names
            names.get(weight, []).append(name)
        self.names = [*names.values()]
        self.averages = [
            weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True) for weight in self.weights
        ]
        self.infinite = places_with_infinity(self.weights)
        self.steps = torch.zeros((), device=self.averages[0].device)
        last = getattr(optimizer, "optimizers", [optimizer])[-1]  # of several, when all have taken their step
        last.register_step_post_hook(self._follow)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the average for its weights; afterwards it has these again, bit for bit."""
        own = [weight.detach().clone() for weight in self.weights]
        try:
            torch._foreach_copy_(self.weights, self.averages)
            yield
        finally:
            torch._foreach_copy_(self.weights, own)

    def state_dict(self) -> dict[str, Any]:
        """Return the average by the names of the parameters, and how many steps it has followed."""
        named = {name: each for names, each in zip(self.names, self.averages, strict=True) for name in names}
        return {"average": named, "averaged_steps": self.steps.item()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, or begin with the weights that were loaded where it holds no average."""
        saved = state.get("average", {})
        for average, names, weight in zip(self.averages, self.names, self._followed(), strict=True):
            average.copy_(next((saved[name] for name in names if name in saved), weight.detach()))
        self.steps.fill_(state.get("averaged_steps", 0.0))

    @torch.no_grad()
    def _follow(self, optimizer: Optimizer, *_: Any) -> None:
        # A fused optimizer may have left the step out on the GPU, which the CPU does not wait for.
        skipped = getattr(optimizer, "found_inf", None)
        taken = 1.0 if skipped is None else 1.0 - skipped
        self.steps += taken
        share = taken * (9 / (9 + self.steps)).clamp(min=1 - self.decay)
        weights = self._followed()
        changes = torch._foreach_sub(weights, self.averages)
        torch._foreach_mul_(changes, share)
        torch._foreach_add_(self.averages, changes)
        for i in self.infinite:  # inf - inf is NaN
            self.averages[i].copy_(torch.where(weights[i].isfinite(), self.averages[i], weights[i]))

    def _followed(self) -> list[Tensor]:
        stepped = self._stepped()
        return [stepped[place] for place in self.places]

    def _stepped(self) -> list[Tensor]:
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]


def places_with_infinity(weights: list[Tensor]) -> list[int]:
    """Return which weights hold -inf, such as masks that are trained."""
    return [i for i, weight in enumerate(weights) if not weight.isfinite().all()]
