"""What was seen of a rank: plain types, which a process without torch can read as well."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Step:
    """What one optimizer step left."""

    weights: str  # hash of all weights that the optimizer steps
    collectives: int  # that this rank has taken part in so far
    losses: int  # that this rank has computed so far


@dataclass
class Loss:
    """One call of the loss."""

    trained: bool  # rather than evaluated
    value: float  # mean over the samples
    samples: int


@dataclass
class Observation:
    """What one rank did: a trail that two runs can be compared by."""

    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    left: Any = None  # of rank 0: what judgement.look_at() found at the end
    scales: list[tuple[float, int]] = field(default_factory=list)  # torch's GradScaler: scale and age, at each update
