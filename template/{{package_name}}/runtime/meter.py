"""Sums of the loss and the metrics over batches and ranks, and how far a run has come."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import Config
from .collectives import gather, reduce_tensor
from .exits import UserError
from .heartbeat import HERE

NUMBERS = (Tensor, float, int)
AT_ONCE = 64  # batches that are added up together: to do so in every step would cost 1 % of a step of 3 ms


class Mean(NamedTuple):
    """A sum and what to divide it by, so that the mean over any batches and ranks is exact."""

    sum: Tensor | float  # of any shape; that of the loss is a scalar
    count: Tensor | float  # type: ignore[assignment]  # of samples, of tokens, or of whatever else the mean is over


Totals = dict[str, Mean]  # over all ranks, as floats; a sum that is no scalar is a tensor of float64 on the CPU


def checked(means: Any) -> dict[str, Mean]:
    """Return what compute() has returned. Raises UserError if it is not what compute() must return."""
    if not isinstance(means, dict) or "loss" not in means:
        found = f"a dict of {[*means]}" if isinstance(means, dict) else type(means).__name__
        raise UserError(f'task.py: compute() must return a dict with "loss": Mean(sum, count), not {found}')
    for name, mean in means.items():
        if not (isinstance(mean, Mean) and isinstance(mean[0], NUMBERS) and isinstance(mean[1], NUMBERS)):
            found = " ".join(repr(mean).split())
            raise UserError(f'task.py: "{name}" must be a Mean(sum, count) of tensors or numbers, not {found:.60}')
    if isinstance(loss := means["loss"].sum, Tensor) and loss.dim():
        shape = tuple(loss.shape)
        raise UserError(f'task.py: the sum of "loss" must be a scalar, not of shape {shape}: give reduction="sum"')
    return means


class Meter:
    """Adds up what compute() returns, on the device: to read a loss in every step would wait for it."""

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        """Begin at zero. With finite_only, a batch whose loss is inf or NaN does not count."""
        self.device = device
        self.finite_only = finite_only
        self.batches: list[list[Tensor | float]] = []  # that are not in the totals yet: each sum and its count, in turn
        self.shapes: dict[str, torch.Size] = {}  # of the sums
        self.agreed = False  # whether the shapes are those of all ranks
        self.totals: Tensor | float = 0.0  # each sum, flattened, and its count, in a row

    def add(self, means: dict[str, Mean], *, counts: bool = True) -> None:
        """Add the means of a batch, if it counts. Raises UserError if the names are not those of the batches before."""
        if not counts:
            means = {name: Mean(torch.zeros_like(torch.as_tensor(mean.sum)), 0) for name, mean in means.items()}
        if not self.shapes:
            self.shapes = {name: torch.as_tensor(mean.sum).shape for name, mean in means.items()}
        if means.keys() != self.shapes.keys():
            both = f"{', '.join(self.shapes)} and then {', '.join(means)}"
            raise UserError(f"task.py: compute() must return the same names for every batch, not {both}")
        values = [value for name in self.shapes for value in means[name]]
        self.batches.append([value.detach() if isinstance(value, Tensor) else value for value in values])
        if len(self.batches) >= AT_ONCE:
            self._add_up()

    def reduce(self, *further: Tensor | float) -> tuple[Totals, list[float]]:
        """Return the totals of all ranks since the last call, and the sums of further numbers over all ranks.

        One all-reduce, which waits for the device. Raises UserError on every rank if their names differ.
        """
        HERE.phase = "reducing"
        self._add_up()
        if not self.agreed:
            self.shapes, self.agreed = agreed_shapes(self.shapes), True
        lengths = [length for shape in self.shapes.values() for length in (shape.numel(), 1)]
        own, self.totals = torch.zeros(sum(lengths), dtype=torch.float64, device=self.device) + self.totals, 0.0
        numbers = [torch.as_tensor(each, dtype=own.dtype, device=own.device).view(-1) for each in further]
        everything = reduce_tensor(torch.cat([own, *numbers]), "sum").to("cpu")
        parts = everything[: len(own)].split(lengths)
        totals: Totals = {}
        for (name, shape), total, count in zip(self.shapes.items(), parts[::2], parts[1::2], strict=True):
            totals[name] = Mean(total.view(shape) if shape else total.item(), count.item())
            if totals[name].count == 0 and not self.finite_only:
                raise UserError(f'task.py: the count of "{name}" is 0 over all batches and ranks')
        return totals, everything[len(own) :].tolist()

    def _add_up(self) -> None:
        if not self.batches:
            return
        columns = [self._rows(values) for values in zip(*self.batches, strict=True)]
        rows = torch.cat(columns, dim=1)
        if self.finite_only:
            rows = torch.where(columns[2 * [*self.shapes].index("loss")].isfinite(), rows, 0.0)
        # Neither Tensor.sum() nor Tensor.cpu(): libraries for mixed precision replace them, and round to float32.
        self.totals = torch.einsum("ij->j", rows) + self.totals
        self.batches = []

    def _rows(self, values: Any) -> Tensor:
        """Return a value of each batch as a row of float64."""
        if not all(isinstance(value, Tensor) for value in values):
            # A copy of so few bytes, from memory that is not pinned, does not wait for the device.
            return torch.tensor([*map(float, values)], dtype=torch.float64).to(self.device, non_blocking=True)[:, None]
        return torch.stack(values).double().reshape(len(values), -1)


def agreed_shapes(own: dict[str, torch.Size]) -> dict[str, torch.Size]:
    """Return the names and shapes of all ranks; a rank without a batch has none. Raises UserError if ranks differ."""
    of_ranks = [[(name, tuple(shape)) for name, shape in shapes.items()] for shapes in gather(own)]
    first = next(filter(None, of_ranks), [])
    for rank, shapes in enumerate(of_ranks):
        if shapes and shapes != first:
            raise UserError(
                "task.py: compute() must return the same names and shapes on every rank, "
                f"not {first} on rank {of_ranks.index(first)} and {shapes} on rank {rank}"
            )
    return {name: torch.Size(shape) for name, shape in first}


@dataclass
class Progress:
    """How far a run has come; the same on every rank."""

    step: int = 0  # optimizer steps
    epoch: int = 0  # epochs completed
    samples_in_epoch: int = 0  # trained in the current epoch, over all ranks
    samples_of_epoch: int = 0  # of the training set that the epoch deals out; 0: not known
    samples_seen: int = 0  # trained in the whole run, over all ranks
    best: float = math.nan  # value of the metric that decides, on the validation set
    best_metrics: dict[str, float] = field(default_factory=dict)  # all metrics then, and the step
    since_best: int = 0  # evaluations
    of_epoch: Totals = field(default_factory=dict)  # of the current epoch, without losses that are not finite
    recent: Totals = field(default_factory=dict)  # the same since metrics were due

    def advance(self, samples: int) -> None:
        """Count one optimizer step."""
        self.step += 1
        self.samples_in_epoch += samples
        self.samples_seen += samples
        HERE.step = self.step

    def count(self, totals: Totals) -> None:
        """Add up what all ranks have trained: of the epoch, and since metrics were due."""
        for sums in (self.of_epoch, self.recent):
            for name, total in totals.items():
                before = sums.get(name, Mean(0.0, 0.0))
                sums[name] = Mean(before.sum + total.sum, before.count + total.count)

    def complete_epoch(self) -> None:
        """Go on to the start of the next epoch."""
        self.epoch += 1
        self.samples_in_epoch = 0
        self.of_epoch = {}

    def is_out_of_steps(self, config: Config) -> bool:
        """Return whether --max-steps ends the run here."""
        return 0 < config.max_steps <= self.step

    def is_save_due(self, config: Config) -> bool:
        """Return whether --save-every asks for a checkpoint after this step."""
        return config.save_every > 0 and self.step % config.save_every == 0

    def is_done(self, config: Config) -> bool:
        """Return whether nothing is left to train."""
        return self.epoch >= config.epochs or self.is_out_of_steps(config) or self.is_out_of_patience(config)

    def is_out_of_patience(self, config: Config) -> bool:
        """Return whether --patience ends the run here."""
        return 0 < config.patience <= self.since_best

    def is_evaluation_due(self, config: Config) -> bool:
        """Return whether this epoch, which ends here, is one of those to evaluate: each last one is."""
        last = self.is_out_of_steps(config) or self.epoch + 1 == config.epochs
        return last or (self.epoch + 1) % config.eval_every == 0

    def is_best(self, metrics: dict[str, float], decides: str, *, higher: bool) -> bool:
        """Return whether the metric that decides is the best so far, and remember the metrics if it is."""
        value = metrics[decides]
        if math.isnan(self.best) or (value > self.best if higher else value < self.best):
            self.best, self.best_metrics, self.since_best = value, {**metrics, "step": self.step}, 0
            return True
        self.since_best += 1
        return False

    def forget_best(self) -> None:
        """Look for the best metrics anew."""
        self.best, self.best_metrics, self.since_best = math.nan, {}, 0

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain numbers and tensors, for the checkpoint."""
        totals = {name: {key: [*mean] for key, mean in getattr(self, name).items()} for name in ("of_epoch", "recent")}
        return vars(self) | totals

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises TypeError if it is none."""
        totals = {name: {key: Mean(*mean) for key, mean in state[name].items()} for name in ("of_epoch", "recent")}
        best = math.nan if state["best"] is None else state["best"]  # None: from version 1.0.0, before an evaluation
        vars(self).update(vars(Progress(**state | totals | {"best": best})))
        HERE.step = self.step
