"""Sums of the loss and the metrics over batches and ranks, and how far a run has come."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, fields
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config import Config
from .collectives import BATCH, gather, gather_objects, reduce_tensor
from .exits import UserError
from .sampling import ResumableDistributedSampler
from .watchdog import STATUS

NUMBERS = (Tensor, float, int)
AT_ONCE = 64  # batches that are added up together: to do so in every step would cost 1 % of a step of 3 ms


class Mean(NamedTuple):
    """A sum and a constant to divide it by, so that the mean over any batches and ranks is exact."""

    sum: Tensor | float  # of any shape; that of the loss is a scalar
    count: Tensor | float  # type: ignore[assignment]  # of samples, tokens, or other units


class AllSamples:
    """Tensors with a row for each sample of a batch, for a metric that needs those of a whole set, such as AUROC.

    At an evaluation, summarize() gets a tuple of as many tensors. They have each evaluated sample once, in the order of
    the set, on any number of ranks. They are in the memory of rank 0, on the CPU; half precision comes as float32. In
    training they are left out. Of a stream, they come in the order in which it was read.
    """

    def __init__(self, *values: Tensor) -> None:
        self.values = values


Rows = dict[str, list[tuple[Tensor, ...]]]  # of AllSamples, by name: of each batch on rank 0, and none on others
ReducedMetrics = dict[str, Mean]  # over all ranks, as floats; a sum that is no scalar is a tensor of float64 on the CPU


def checked(means: Any) -> dict[str, Mean]:
    """Return what compute() has returned. Raises UserError if it is not what compute() must return."""
    if not isinstance(means, dict) or "loss" not in means:
        found = f"a dict of {[*means]}" if isinstance(means, dict) else type(means).__name__
        raise UserError(f'task.py: compute() must return a dict with "loss": Mean(sum, count), not {found}')
    for name, mean in means.items():
        if isinstance(mean, AllSamples) and name != "loss":
            check_rows(name, mean.values)
        elif not (isinstance(mean, Mean) and isinstance(mean[0], NUMBERS) and isinstance(mean[1], NUMBERS)):
            found = " ".join(repr(mean).split())
            raise UserError(f'task.py: "{name}" must be a Mean(sum, count) of tensors or numbers, not {found:.60}')
        elif isinstance(count := mean.count, Tensor) and count.dim():
            raise UserError(f'task.py: the count of "{name}" must be a scalar, not of shape {tuple(count.shape)}')
    if isinstance(loss := means["loss"].sum, Tensor) and loss.dim():
        shape = tuple(loss.shape)
        raise UserError(f'task.py: the sum of "loss" must be a scalar, not of shape {shape}: give reduction="sum"')
    return means


def trainable(returned: Any) -> dict[str, Mean]:
    """Return the means that compute() has returned in training, without AllSamples.

    Raises UserError if they are not what compute() must return, or if the loss has no gradient.
    """
    means = {name: mean for name, mean in checked(returned).items() if isinstance(mean, Mean)}
    if not BATCH.counts:  # the rank has no samples left of a stream, and only takes part
        means = {name: Mean(zero(mean.sum), zero(mean.count)) for name, mean in means.items()}
    loss, count = means["loss"]
    if isinstance(count, Tensor) and count.requires_grad:
        raise UserError('task.py: the count of "loss" is taken as a constant, and this one has a gradient: detach() it')
    if not (isinstance(loss, Tensor) and loss.requires_grad):
        raise UserError('task.py: "loss" has no gradient: compute it from outputs of the model, without detach()')
    return means


@contextmanager
def only_taking_part(model: nn.Module) -> Iterator[None]:
    """Inside, a batch that does not count leaves running statistics as they are, and may have a single sample."""
    norms = [module for module in model.modules() if module.training and getattr(module, "track_running_stats", False)]
    alone = [module for module in norms if not hasattr(module, "process_group")]  # whose statistics are of all ranks
    for module in alone:
        module.eval()
    try:
        yield
    finally:
        BATCH.counts = True
        for module in alone:
            module.train()


def zero(value: Tensor | float) -> Tensor | float:
    """Return 0 with the graph of a value, also if it is not finite."""
    return torch.nan_to_num(value, 0.0, 0.0, 0.0) * 0 if isinstance(value, Tensor) else 0.0


def check_rows(name: str, values: tuple[Any, ...]) -> None:
    """Raise UserError if what compute() returns as AllSamples is not tensors with equally many rows."""
    found = [tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in values]
    if not all(isinstance(value, Tensor) and value.dim() for value in values) or len({*map(len, values)}) != 1:
        raise UserError(f'task.py: "{name}" must be AllSamples of tensors, a row for each sample, not of {found}')


class MetricAccumulator:
    """Adds up what compute() returns, on the device: to read a loss in every step would wait for it."""

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        """Begin at zero. With finite_only, a batch whose loss is inf or NaN does not count."""
        self.device = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        self.finite_only = finite_only
        self.batches: list[list[Tensor | float]] = []  # that are not in the totals yet: each sum and its count, in turn
        self.shapes: dict[str, torch.Size] = {}  # of the sums
        self.rows_of: list[str] = []  # names of AllSamples, in an evaluation
        self.agreed = False  # whether the shapes are those of all ranks
        self.totals: Tensor | float = 0.0  # each sum, flattened, and its count, in a row

    def add(self, means: dict[str, Mean], *, counts: bool = True) -> None:
        """Add the means of a batch, if it counts. Raises UserError if earlier batches had other names."""
        if not counts:
            means = {name: Mean(torch.zeros_like(torch.as_tensor(mean.sum)), 0) for name, mean in means.items()}
        if not self.shapes:
            self.shapes = {name: torch.as_tensor(mean.sum).shape for name, mean in means.items()}
        if means.keys() != self.shapes.keys():
            raise other_names(self.shapes, means)
        self.batches.append([kept(value) for name in self.shapes for value in means[name]])
        if len(self.batches) >= AT_ONCE:
            self._add_up()

    def reduce(self, *further: Tensor | float) -> tuple[ReducedMetrics, list[float]]:
        """Return the totals of all ranks since the last call, and the sums of further numbers over all ranks.

        One all-reduce, which waits for the device. Raises UserError on every rank if their names differ.
        """
        STATUS.phase = "reducing"
        self._add_up()
        if not self.agreed:
            agreed = agreed_shapes(self.shapes | dict.fromkeys(self.rows_of, torch.Size()))
            self.shapes, self.agreed = {name: agreed[name] for name in agreed if name not in self.rows_of}, True
        lengths = [length for shape in self.shapes.values() for length in (shape.numel(), 1)]
        own, self.totals = torch.zeros(sum(lengths), dtype=torch.float64, device=self.device) + self.totals, 0.0
        numbers = [torch.as_tensor(each, device=own.device).double().view(-1) for each in further]
        everything = reduce_tensor(torch.cat([own, *numbers]), "sum").to("cpu")
        parts = everything[: len(own)].split(lengths)
        totals: ReducedMetrics = {}
        for (name, shape), total, count in zip(self.shapes.items(), parts[::2], parts[1::2], strict=True):
            totals[name] = Mean(total.view(shape) if shape else total.item(), count.item())
            if totals[name].count == 0 and name == "loss" and not self.finite_only:
                raise UserError(f'task.py: the count of "{name}" is 0 over all batches and ranks')
        return totals, everything[len(own) :].tolist()

    def _add_up(self) -> None:
        if not self.batches:
            return
        if changed := self._changed():
            advice = "return a clone() of it"
            raise UserError(f'task.py: "{changed}" was changed in place after compute() had returned it: {advice}')
        try:
            columns = [self._rows(values) for values in zip(*self.batches, strict=True)]
        except RuntimeError as error:
            if "equal size" in str(error):
                raise UserError(f"task.py: each sum must have the same shape in every batch: {error}") from error
            raise
        rows = torch.cat(columns, dim=1)
        wanted = sum(shape.numel() + 1 for shape in self.shapes.values())
        if rows.shape[1] != wanted:
            found = f"{rows.shape[1]} numbers in all, and before {wanted}"
            raise UserError(f"task.py: each sum must have the same shape in every batch: {found}")
        if self.finite_only:
            place = 2 * [*self.shapes].index("loss")  # of its sum; its count is next
            finite = columns[place].isfinite() & columns[place + 1].isfinite()
            rows = torch.where(finite, rows, 0.0)
        # Neither Tensor.sum() nor Tensor.cpu(): libraries for mixed precision replace them, and round to float32.
        self.totals = torch.einsum("ij->j", rows) + self.totals
        self.batches = []

    def _changed(self) -> str | None:
        """Return the name of a value that was kept as it was, and is another one now."""
        for values in self.batches:
            for place, value in enumerate(values):
                if isinstance(value, Tensor) and value._version:
                    return [*self.shapes][place // 2]
        return None

    def _rows(self, values: Any) -> Tensor:
        """Return a value of each batch as a row of float64."""
        if not all(isinstance(value, Tensor) for value in values):
            # A copy of so few bytes, from memory that is not pinned, does not wait for the device.
            return torch.tensor([*map(float, values)], dtype=torch.float64).to(self.device, non_blocking=True)[:, None]
        return torch.stack(values).to(self.device).double().reshape(len(values), -1)


def kept(value: Tensor | float) -> Tensor | float:
    """Return a value as it is now: a copy if it is a weight, or was changed in place, as buffers are.

    The result of an operation is no copy, which would cost a kernel.
    """
    if not isinstance(value, Tensor):
        return value
    is_weight = value.is_leaf and value.requires_grad
    return value.detach().clone() if value.is_inference() or is_weight or value._version else value.detach()


class Evaluated(NamedTuple):
    """What an evaluation has found: summarize() makes the metrics of it."""

    totals: ReducedMetrics
    rows: Rows
    media: dict[str, Any]  # what show() of task.py returned


class EvaluationAccumulator(MetricAccumulator):
    """Adds up what compute() returns in an evaluation, and brings its AllSamples to rank 0."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.waiting: list[dict[str, tuple[Tensor, ...]]] = []  # of each batch: rows that rank 0 does not have yet
        self.rows: Rows = {}

    def add(self, means: dict[str, Any], *, counts: bool = True) -> None:
        """Add the means and the rows of a batch, if it counts. Raises UserError as in training."""
        own = {name: each.values for name, each in means.items() if isinstance(each, AllSamples)}
        if not self.shapes:
            self.rows_of = [*own]
        if own.keys() != {*self.rows_of}:
            raise other_names([*self.shapes, *self.rows_of], means)
        if own:
            rows = {name: tuple(map(on_cpu, values)) for name, values in own.items()}
            self.waiting.append(rows if counts else {name: () for name in rows})
            if len(self.waiting) >= AT_ONCE:
                self._gather_rows()
        super().add({name: mean for name, mean in means.items() if name not in own}, counts=counts)

    def result(self) -> Evaluated:
        """Return what was added on all ranks."""
        totals, _ = self.reduce()  # which finds ranks with other names
        if self.waiting:
            self._gather_rows()
        return Evaluated(totals, self.rows, {})

    def _gather_rows(self) -> None:
        STATUS.phase = "gathering samples"
        for of_ranks in zip(*gather_objects(self.waiting), strict=True):  # first batch of each rank, then the second
            for name, values in chain.from_iterable(each.items() for each in of_ranks):
                self.rows.setdefault(name, []).extend([values] if values else [])
        self.rows = {name: self.rows.get(name, []) for name in self.waiting[0]}
        self.waiting = []
        STATUS.phase = "evaluating"


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, as summarize() gets it."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.detach().to("cpu", torch.float32 if half else tensor.dtype, copy=True)  # a part without its whole


def joined(name: str, rows: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the rows of all batches. Raises UserError if their shapes do not fit together."""
    try:
        return tuple(map(torch.cat, zip(*rows, strict=True)))
    except (RuntimeError, ValueError) as error:
        raise UserError(f'task.py: the AllSamples of "{name}" must have rows of one shape: {error}') from error


def other_names(before: Iterable[str], now: Iterable[str]) -> UserError:
    """Return the error for a batch whose names are not those of the batches before."""
    both = f"{', '.join(map(str, before))} and then {', '.join(map(str, now))}"
    return UserError(f"task.py: compute() must return the same names for every batch, not {both}")


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


@torch._disable_dynamo  # --compile would compile anew in each step
def current_step() -> int:
    """Return how many optimizer steps the model has taken, for compute(): the same on all ranks, and after a stop."""
    return STATUS.step


def interval_of(option: int | str, unit: str) -> tuple[int, str]:
    """Return the number and the unit of an option such as --eval-every; this unit if it names none."""
    number = str(option).rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(number), str(option).removeprefix(number) or unit


@dataclass
class Progress:
    """How far a run has come, and what is due after a step; the same on every rank."""

    config: InitVar[Config]
    sampler: InitVar[ResumableDistributedSampler]
    step: int = 0  # optimizer steps
    epoch: int = 0  # epochs completed
    samples_in_epoch: int = 0  # trained in the current epoch, over all ranks
    samples_of_epoch: int = 0  # of the training set that the epoch deals out
    samples_seen: int = 0  # trained in the whole run, over all ranks
    steps_of_epoch: int = 0  # optimizer steps in an epoch, with the batch size of the last start
    extra_steps: int = 0  # by which the run is longer than its epochs, after a change of the batch size
    units_seen: float = 0.0  # what the count of "loss" counts, of them
    best: float = math.nan  # value of the metric that decides, on the first set to evaluate on
    best_metrics: dict[str, float] = field(default_factory=dict)  # all metrics then, and the step
    decides: str = ""  # which metric of which set, and whether high or low is good
    since_best: int = 0  # evaluations
    evaluated_step: int = -1  # after which the last evaluation was
    of_epoch: ReducedMetrics = field(default_factory=dict)  # of the current epoch, without losses that are not finite
    recent: ReducedMetrics = field(default_factory=dict)  # the same since the last record

    def __post_init__(self, config: Config, sampler: ResumableDistributedSampler) -> None:
        """Keep what decides about the next steps, which is no part of the state."""
        self._config, self._sampler = config, sampler
        self.samples_of_epoch = self.samples_of_epoch or sampler.samples
        self.lr = math.nan  # of the last step
        self._epochs = math.inf if config.steps else config.epochs
        self._steps = config.steps or math.inf
        self._max_steps = min(filter(None, (config.steps, config.max_steps)), default=math.inf)
        self._log, self._save = interval_of(config.log_every, "steps"), interval_of(config.save_every, "steps")
        self._evaluation = interval_of(config.eval_every, "epochs")
        self._saved, self._timed_save = time.monotonic(), False  # for saves that are due by the clock

    def advance(self, samples: int, lr: float) -> None:
        """Count an optimizer step."""
        self.step += 1
        self.samples_in_epoch += samples
        self.samples_seen += samples
        self.lr = lr
        self._timed_save = False
        STATUS.step = self.step

    def count(self, totals: ReducedMetrics, *, timed_save: bool = False) -> None:
        """Add up what all ranks have trained: of the epoch, and since the last record. A save may be due by now."""
        if timed_save:
            self._saved, self._timed_save = time.monotonic(), True
        self.units_seen += float(totals["loss"].count) if "loss" in totals else 0.0
        for sums in (self.of_epoch, self.recent):
            for name, total in totals.items():
                before = sums.get(name, Mean(0.0, 0.0))
                sums[name] = Mean(before.sum + total.sum, before.count + total.count)

    def has_finished_epoch(self) -> bool:
        """Return whether nothing is left of the epoch."""
        return self._sampler.is_over(self.samples_in_epoch)

    def reached_max_steps(self) -> bool:
        """Return whether --steps or --max-steps ends the run here."""
        return self.step >= self._max_steps

    def should_stop_early(self) -> bool:
        """Return whether --patience ends the run here."""
        return 0 < self._config.patience <= self.since_best

    def is_done(self) -> bool:
        """Return whether nothing is left to train."""
        return self.is_complete() or self.reached_max_steps()

    def is_complete(self) -> bool:
        """Return whether the run has its whole length, or --patience has ended it: --max-steps only stops it."""
        return self.epoch >= self._epochs or self.step >= self._steps or self.should_stop_early()

    def is_record_due(self) -> bool:
        """Return whether --log-every asks for a record after this step; each epoch ends with one, if it is in steps."""
        number, unit = self._log
        if unit == "epochs":
            return self.has_finished_epoch() and (self.epoch + 1) % number == 0
        return self.has_finished_epoch() or self.step % number == 0

    def is_reduction_due(self) -> bool:
        """Return whether the ranks reduce their sums after this step: for a record, a checkpoint or an evaluation."""
        due = self.is_record_due() or self.is_save_due() or self.is_evaluation_due()
        return due or self.has_finished_epoch()  # the next epoch has sums of its own

    def is_evaluation_due(self) -> bool:
        """Return whether to evaluate after this step: where the run ends, and where --eval-every asks for it."""
        return self.reached_max_steps() or self.is_regular_evaluation()

    def is_regular_evaluation(self) -> bool:
        """Return whether --eval-every asks for an evaluation after this step; the last epoch ends with one."""
        number, unit = self._evaluation
        if unit == "steps" and self.step % number == 0:
            return True
        epoch = self.epoch + 1
        asked_for = epoch == self._epochs or (unit == "epochs" and epoch % number == 0)
        return self.has_finished_epoch() and asked_for

    def is_unfinished(self) -> bool:
        """Return whether the run was stopped before what is due after its last step."""
        lacks_evaluation = 0 < self.step != self.evaluated_step and self.is_evaluation_due()
        return not self.is_done() and (self.has_finished_epoch() or lacks_evaluation)

    def is_save_due(self) -> bool:
        """Return whether a checkpoint is due after this step: it was evaluated, or --save-every asks for one."""
        number, unit = self._save
        if self.evaluated_step == self.step or number == 0:
            return self.evaluated_step == self.step
        if unit == "epochs":
            at_end = self.has_finished_epoch() or self.samples_in_epoch == 0
            return at_end and (self.epoch + self.has_finished_epoch()) % number == 0
        return self._timed_save if unit == "min" else self.step % number == 0

    def is_timed_save_due(self) -> bool:
        """Return whether a save is due by the clock of this rank."""
        number, unit = self._save
        return unit == "min" and 0 < 60 * number <= time.monotonic() - self._saved

    def take_recent(self) -> ReducedMetrics:
        """Return what was trained since the last record, and forget it if a record is due: not at --max-steps alone."""
        recent = self.recent
        if self.is_record_due():
            self.recent = {}
        return recent

    def add_evaluation(self, metrics: dict[str, float], decides: str, *, higher: bool) -> None:
        """Count an evaluation after this step, and remember its metrics if the deciding metric is the best so far."""
        self.evaluated_step = self.step
        self.since_best += self.is_regular_evaluation()  # for --patience, not one that only --max-steps asks for
        value = metrics[decides]
        better = value > self.best if higher else value < self.best
        if not self.best_metrics or better or (math.isnan(self.best) and not math.isnan(value)):
            self.best, self.best_metrics, self.since_best = value, {**metrics, "step": self.step}, 0

    def is_best_step(self) -> bool:
        """Return whether the evaluation after this step is the best so far."""
        return self.evaluated_step == self.step == self.best_metrics.get("step")

    def start_next_epoch(self) -> None:
        """Begin another epoch if nothing is left of this one."""
        if self.has_finished_epoch():
            self.epoch += 1
            self.samples_in_epoch = 0
            self.of_epoch = {}

    def forget_best(self) -> None:
        """Forget the best metrics."""
        self.best, self.best_metrics, self.since_best = math.nan, {}, 0

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain numbers and tensors, for the checkpoint."""
        totals = {name: {key: [*mean] for key, mean in getattr(self, name).items()} for name in ("of_epoch", "recent")}
        return {each.name: getattr(self, each.name) for each in fields(self)} | totals | self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises TypeError if it is none."""
        totals = {name: {key: Mean(*mean) for key, mean in state[name].items()} for name in ("of_epoch", "recent")}
        own = {name: value for name, value in state.items() if name != "stream"}  # which is the sampler's
        best = math.nan if state["best"] is None else state["best"]  # None: from version 1.0.0, before an evaluation
        vars(self).update(vars(Progress(self._config, self._sampler, **own | totals | {"best": best})))
        if "stream" in state and hasattr(self._sampler, "load_state_dict"):
            self._sampler.load_state_dict(state["stream"])
        STATUS.step = self.step

    def check_samples(self) -> None:
        """Raise UserError if the epoch began with another number of samples: their order would be another one."""
        samples, before, trained = self._sampler.samples, self.samples_of_epoch, self.samples_in_epoch
        if trained and (before != samples or trained > samples):
            had = before if before != samples else f"at least {trained}"
            raise UserError(
                f"data.py: the training set has {samples} samples and had {had} when epoch {self.epoch + 1} began: "
                "resume with as many, or from a checkpoint at the end of an epoch, or begin anew with --init-from"
            )
        self.samples_of_epoch = samples
