"""What "trained" means: the checks of what a run left, and of what its ranks were seen to do."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.check.train.observation import Loss, Observation
from generator.check.train.records import READERS, History, read_log


@dataclass
class Left:
    """What a run has left in its run directory, in plain types."""

    parts: dict[str, str] = field(default_factory=dict)  # hash of each part of the last checkpoint
    history: History = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)  # what cannot be read


def look_at(run_dir: Path, logger: str) -> Left:
    """Read the last checkpoint and the records. Called where torch and the logger are imported already."""
    left = Left()
    try:
        left.parts = checkpoint_parts(run_dir / "checkpoints" / "last.pt")
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        left.complaints.append(f"the last checkpoint cannot be read: {error!r}")
    try:
        left.history = dict(READERS.get(logger, read_log)(run_dir))
    except Exception as error:  # other people's readers raise what they like
        left.complaints.append(f"the records of {logger} cannot be read: {error!r}")
    return left


@dataclass(frozen=True)
class Case:
    """What the ranks were seen to do before and after the stop, and what they left."""

    logger: str
    stop: int | None  # the step at which it was stopped; None: it was not
    end: int  # the last step
    before: list[Observation]
    after: list[Observation]


@dataclass
class Judgement:
    """What was found out, in plain types."""

    failures: list[tuple[str, str]] = field(default_factory=list)  # stage and text
    notes: list[str] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)  # hash of the weights after each step
    scales: list[tuple[float, int]] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)  # hash of each part of the last checkpoint
    recorded: list[tuple[int, float]] = field(default_factory=list)  # steps and values of train/loss


@dataclass
class StepSeen:
    """The losses of one optimizer step on all ranks, and those of an evaluation after it."""

    trained: list[Loss]
    evaluated: list[Loss]


def judge(case: Case) -> Judgement:
    """Look at all that the runs of a combination left."""
    judgement = Judgement()
    starts = [case.before, case.after] if case.after else [case.before]
    if any(rank is None for ranks in starts for rank in ranks):
        judgement.failures.append(("train", "a rank ended with code 0, but has not trained"))
        return judgement
    judgement.trail = [step.weights for ranks in starts for step in ranks[0].steps]
    judgement.scales = [scale for ranks in starts for scale in ranks[0].scales]
    steps = [case.stop or case.end, *([case.end - case.stop] if case.stop else [])]
    for stage, ranks, expected in zip(("train", "resume"), starts, steps, strict=False):
        counted = stage == "train" and case.stop is not None
        judgement.failures += [(stage, text) for text in complaints_of_ranks(ranks, expected, counted)]
    if judgement.failures:
        return judgement
    left = starts[-1][0].left or Left(complaints=["nobody has looked at what it left"])
    judgement.parts = left.parts
    judgement.recorded = [*left.history.get("train/loss", [])]
    if case.logger not in READERS:
        note = f"logging={case.logger}: only its train.log was read, since there is no reader for its records"
        judgement.notes.append(note)
    wrong = left.complaints or complaints_of_records(case, left.history, steps_seen(starts))
    judgement.failures += [("train", text) for text in wrong]
    return judgement


def complaints_of_ranks(ranks: Sequence[Observation], expected: int, counted: bool) -> Iterator[str]:
    """What the ranks did in one start; counted: whether nothing but training lies between its last two steps."""
    counts = [len(rank.steps) for rank in ranks]
    if counts != [expected] * len(ranks):
        yield f"the ranks took {counts} optimizer steps, where {expected} were to be taken by each"
        return
    for number, step in enumerate(zip(*(rank.steps for rank in ranks), strict=True), start=1):
        if len({rank.weights for rank in step}) > 1:
            yield f"the ranks hold different weights after step {number} of this start"
            return
    if len({len(rank.losses) for rank in ranks}) > 1:
        yield "the ranks computed different numbers of losses"
    if counted:
        # Nothing is reported between these two, and DDP has settled on its buckets, of which there is one.
        reductions = ranks[0].steps[-1].collectives - ranks[0].steps[-2].collectives
        if reductions != 1:
            yield f"a step of two micro-batches takes {reductions} collectives, and should take 1, at its end"


def steps_seen(starts: Sequence[Sequence[Observation]]) -> list[StepSeen]:
    """Sort the losses of all ranks by the step that they belong to."""
    seen = []
    for ranks in starts:
        bounds = [[0, *(step.losses for step in rank.steps), len(rank.losses)] for rank in ranks]
        for number in range(len(ranks[0].steps)):
            within = [rank.losses[own[number] : own[number + 1]] for rank, own in zip(ranks, bounds, strict=True)]
            later = [rank.losses[own[number + 1] : own[number + 2]] for rank, own in zip(ranks, bounds, strict=True)]
            seen.append(
                StepSeen(
                    [loss for losses in within for loss in losses if loss.trained],
                    [loss for losses in later for loss in losses if not loss.trained],
                )
            )
    return seen


def mean(losses: Iterable[Loss]) -> float:
    """The mean over all samples."""
    values = [*losses]
    return sum(loss.value * loss.samples for loss in values) / sum(loss.samples for loss in values)


def complaints_of_records(case: Case, history: History, seen: list[StepSeen]) -> Iterator[str]:
    """What the logger holds, against the losses that the ranks were seen to compute."""
    precision = 1e-3 if READERS.get(case.logger, read_log) == read_log else 1e-5
    yield from complaints_of_training(history, seen, case, precision)
    yield from complaints_of_evaluation(history, seen, precision)


def complaints_of_training(history: History, seen: list[StepSeen], case: Case, precision: float) -> Iterator[str]:
    """The loss is recorded at growing steps up to the last, is the mean over all ranks, and falls."""
    recorded = history.get("train/loss", [])
    steps = [step for step, _ in recorded]
    if steps != sorted(set(steps)) or not steps or steps[-1] != case.end or (case.stop and case.stop not in steps):
        yield f"train/loss is recorded at the steps {steps}, which should rise to {case.end} by way of {case.stop}"
        return
    for before, (step, value) in zip([0, *steps], recorded, strict=False):
        expected = mean(loss for number in range(before, step) for loss in seen[number].trained)
        if not math.isclose(value, expected, rel_tol=precision):
            yield f"train/loss at step {step} is recorded as {value:.7g}, but is {expected:.7g} over all ranks"
    if not recorded[-1][1] < 0.9 * recorded[0][1]:
        yield f"the loss does not fall: {recorded[0][1]:.4g} at step {steps[0]}, {recorded[-1][1]:.4g} at {steps[-1]}"


def complaints_of_evaluation(history: History, seen: list[StepSeen], precision: float) -> Iterator[str]:
    """Each evaluation is recorded, is the mean over all ranks, and had the same samples."""
    expected = {step: losses.evaluated for step, losses in enumerate(seen, start=1) if losses.evaluated}
    recorded = history.get("epoch/validation_loss", [])
    if [step for step, _ in recorded] != [*expected]:
        yield f"epoch/validation_loss is recorded at {[step for step, _ in recorded]}, evaluated at {[*expected]}"
        return
    for step, value in recorded:
        if not math.isclose(value, mean(expected[step]), rel_tol=precision):
            yield f"epoch/validation_loss at step {step} is {value:.7g}, but {mean(expected[step]):.7g} over all ranks"
    samples = {step: sum(loss.samples for loss in losses) for step, losses in expected.items()}
    if len(set(samples.values())) > 1:
        yield f"evaluations count different numbers of samples: {samples}"


def checkpoint_parts(path: Path) -> dict[str, str]:
    """Return a hash of each part of a checkpoint but for the options, which differ from start to start."""
    import torch

    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    # --max-steps ends a run with an evaluation, which another run does not have at this step.
    checkpoint["progress"].pop("best", None)
    return {name: digest(part) for name, part in checkpoint.items() if name != "config"}


def digest(part: Any) -> str:
    """A hash of nested plain values and tensors, bit for bit."""
    whole = hashlib.sha256()
    for piece in pieces(part):
        whole.update(piece)
    return whole.hexdigest()


def pieces(part: Any) -> Iterator[bytes]:
    """Take a nested value apart."""
    import torch

    if isinstance(part, dict):
        yield b"{"
        for key, value in part.items():
            yield repr(key).encode()
            yield from pieces(value)
        yield b"}"
    elif isinstance(part, list | tuple):
        yield b"["
        for value in part:
            yield from pieces(value)
        yield b"]"
    elif isinstance(part, torch.Tensor):
        yield f"{part.dtype}{tuple(part.shape)}".encode()
        yield part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    else:
        yield repr(part).encode() + b";"
