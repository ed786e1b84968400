"""What "trained" means: checks of the files of a run, and of the traces of its ranks."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.check.train.records import READERS, History, read_jsonl
from generator.check.train.shards import read_whole

# Parts of the progress that --max-steps changes: it ends a run with an evaluation, unlike a longer run.
OF_EVALUATIONS = ("best", "best_metrics", "since_best")
PRECISION = 1e-5  # of recorded losses: TensorBoard keeps float32

# All of these are plain types, which a process without torch can read as well.


@dataclass
class Step:
    weights: str  # hash of all weights that the optimizer of this rank steps: its shards, if the model is sharded
    collectives: int  # that this rank has taken part in so far
    losses: int  # that this rank has computed so far


@dataclass
class Loss:
    trained: bool  # rather than evaluated
    value: float  # mean over the samples
    samples: int


@dataclass
class RunOutput:
    parts: dict[str, str] = field(default_factory=dict)  # hash of each part of the last checkpoint
    history: History = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)  # what cannot be read


@dataclass
class RankTrace:
    """What one rank did in one launch, to compare two runs."""

    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    left: RunOutput | None = None  # of rank 0, at the end
    scales: list[tuple[float, int]] = field(default_factory=list)  # torch's GradScaler: scale and age, at each update
    sharded: bool = False  # the rank steps a part of each weight


@dataclass
class TrainingResult:
    """The results of the runs of a combination."""

    failures: list[tuple[str, str]] = field(default_factory=list)  # stage and text
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    notes: list[str] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)  # hashes of the weights after each step, in both launches
    scales: list[tuple[float, int]] = field(default_factory=list)  # of the loss, after each step
    parts: dict[str, str] = field(default_factory=dict)  # hash of each part of the last checkpoint
    recorded: list[tuple[int, float]] = field(default_factory=list)  # steps and values of train/loss
    whole: dict[str, Any] = field(default_factory=dict)  # trail, scales and parts of the uninterrupted run


def read_output(run_dir: Path, logger: str) -> RunOutput:
    """Read the last checkpoint and the records. Call it where torch and the logger are already imported."""
    left = RunOutput()
    try:
        left.parts = checkpoint_parts(run_dir / "checkpoints" / "last.pt")
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        left.complaints.append(f"the last checkpoint cannot be read: {error!r}")
    try:
        left.history = dict(READERS.get(logger, read_jsonl)(run_dir))
    except Exception as error:  # other people's readers raise what they like
        left.complaints.append(f"the records of {logger} cannot be read: {error!r}")
    return left


def verify(trained: TrainingResult, logger: str, starts: Sequence[Sequence[RankTrace]], ends: Sequence[int]) -> None:
    """Check the traces of the ranks in each launch, and the files of the run; add the findings to `trained`."""
    if any(rank is None for ranks in starts for rank in ranks):
        trained.failures.append(("train", "a rank ended with code 0, but has not trained"))
        return
    for ranks in starts:
        hold = zip(*([step.weights for step in rank.steps] for rank in ranks), strict=False)
        trained.trail += [" ".join(dict.fromkeys(weights)) for weights in hold]  # one hash, unless they are sharded
    trained.scales = [scale for ranks in starts for scale in ranks[0].scales]
    for stage, ranks, begin, end in zip(("train", "resume"), starts, (0, *ends), ends, strict=False):
        # No report is due between the last two steps of the first launch.
        trained.failures += [(stage, text) for text in complaints_of_ranks(ranks, end - begin, end != ends[-1])]
    if trained.failures:
        return
    left = starts[-1][0].left or RunOutput(complaints=["nobody has looked at what it left"])
    trained.parts = left.parts
    trained.recorded = [*left.history.get("train/loss", [])]
    if logger not in READERS:
        note = f"logging={logger}: only its metrics.jsonl was read, since there is no reader for its records"
        trained.notes.append(note)
    history, seen = left.history, losses_of_steps(starts)
    wrong = left.complaints or [*complaints_of_training(history, seen, ends), *complaints_of_evaluation(history, seen)]
    trained.failures += [("train", text) for text in wrong]


def complaints_of_ranks(ranks: Sequence[RankTrace], expected: int, counted: bool) -> Iterator[str]:
    """Yield what is wrong in one launch. `counted`: only training lies between the last two steps."""
    counts = [len(rank.steps) for rank in ranks]
    if counts != [expected] * len(ranks):
        yield f"the ranks took {counts} optimizer steps, where {expected} were to be taken by each"
        return
    for number, step in enumerate(zip(*(rank.steps for rank in ranks), strict=True), start=1):
        if len({rank.weights for rank in step}) > 1 and not ranks[0].sharded:
            yield f"the ranks hold different weights after step {number} of this start"
            return
    if len({len(rank.losses) for rank in ranks}) > 1:
        yield "the ranks computed different numbers of losses"
    if counted and not ranks[0].sharded:  # else weights are gathered, block by block
        # DDP has chosen its buckets by then: a single one.
        reductions = ranks[0].steps[-1].collectives - ranks[0].steps[-2].collectives
        if reductions != 1:
            yield f"a step of two micro-batches takes {reductions} collectives, and should take 1, at its end"


def losses_of_steps(starts: Sequence[Sequence[RankTrace]]) -> list[tuple[list[Loss], list[Loss]]]:
    """Return the losses of all ranks for each step: of its training, and of the evaluation that follows."""
    found = []
    for ranks in starts:
        for number in range(len(ranks[0].steps)):
            trained, evaluated = [], []
            for rank in ranks:
                bounds = [0, *(step.losses for step in rank.steps), len(rank.losses)]
                begin, end, after = bounds[number : number + 3]
                trained += [loss for loss in rank.losses[begin:end] if loss.trained]
                evaluated += [loss for loss in rank.losses[end:after] if not loss.trained]
            found.append((trained, evaluated))
    return found


def mean(losses: Iterable[Loss]) -> float:
    values = [*losses]
    return sum(loss.value * loss.samples for loss in values) / sum(loss.samples for loss in values)


Seen = Sequence[tuple[Sequence[Loss], Sequence[Loss]]]  # of each step: trained, evaluated


def complaints_of_training(history: History, seen: Seen, ends: Sequence[int]) -> Iterator[str]:
    """Yield an error unless the loss is recorded at rising steps to the last, is the mean of all ranks, and falls."""
    recorded = history.get("train/loss", [])
    steps = [step for step, _ in recorded]
    if steps != sorted(set(steps)) or not steps or steps[-1] != ends[-1] or not {*ends} <= {*steps}:
        by_way = "".join(f" by way of {step}" for step in ends[:-1])
        yield f"train/loss is recorded at the steps {steps}, which should rise to {ends[-1]}{by_way}"
        return
    for before, (step, value) in zip([0, *steps], recorded, strict=False):
        expected = mean(loss for trained, _ in seen[before:step] for loss in trained)
        if not math.isclose(value, expected, rel_tol=PRECISION):
            yield f"train/loss at step {step} is recorded as {value:.7g}, but is {expected:.7g} over all ranks"
    if not recorded[-1][1] < 0.9 * recorded[0][1]:
        yield f"the loss does not fall: {recorded[0][1]:.4g} at step {steps[0]}, {recorded[-1][1]:.4g} at {steps[-1]}"


def complaints_of_evaluation(history: History, seen: Seen) -> Iterator[str]:
    """Yield an error unless each evaluation is recorded, is the mean of all ranks, and has the same samples."""
    expected = {step: evaluated for step, (_, evaluated) in enumerate(seen, start=1) if evaluated}
    recorded = history.get("epoch/validation_loss", [])
    if [step for step, _ in recorded] != [*expected]:
        yield f"epoch/validation_loss is recorded at {[step for step, _ in recorded]}, evaluated at {[*expected]}"
        return
    for step, value in recorded:
        if not math.isclose(value, mean(expected[step]), rel_tol=PRECISION):
            yield f"epoch/validation_loss at step {step} is {value:.7g}, but {mean(expected[step]):.7g} over all ranks"
    samples = {step: sum(loss.samples for loss in losses) for step, losses in expected.items()}
    if len(set(samples.values())) > 1:
        yield f"evaluations count different numbers of samples: {samples}"


def checkpoint_parts(path: Path) -> dict[str, str]:
    """Return a hash of each part of a checkpoint, except options and code, which differ between launches."""
    checkpoint = read_whole(path)
    for name in OF_EVALUATIONS:
        checkpoint["progress"].pop(name, None)
    return {name: digest(part) for name, part in checkpoint.items() if name not in ("config", "code")}


def digest(part: Any) -> str:
    """Return a hash of nested plain values and tensors, bit for bit."""
    return hashlib.sha256(b"".join(pieces(part))).hexdigest()


def pieces(part: Any) -> Iterator[bytes]:
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
