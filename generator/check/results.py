"""What `ddp-template check` finds out: the outcome of each combination, and the verdict on all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.combinations import Combination

# What a command calls while it works: with a stage, how many of its things are done, and how many there are.
Advance = Callable[[str, int, int], None]

# In the order in which they judge a combination, with what each of them asks.
STAGES = {
    "render": "does Copier write it, without trust",
    "format": "does black leave it as it is",
    "lint": "is ruff content",
    "types": "is mypy content",
    "train": "do two processes train it as they should",
    "resume": "does a run that was stopped and resumed end on the same bits as one that was not",
    "agree": "does it end on the same bits as the combinations that must be numerically equal",
    "real": "do cold processes of its real launcher end on the same bits as forked ones",
}


@dataclass(frozen=True)
class Failure:
    stage: str  # a key of STAGES
    text: str  # what is wrong, in one line or many
    folder: str | None = None  # what was left behind to look at


@dataclass
class Outcome:
    combination: Combination
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: the time spent on this combination alone
    cached: bool = False  # whether this was known from an earlier check
    weights: str = ""  # hash of the final model; "" where none was trained
    notes: list[str] = field(default_factory=list)  # what could not be checked, and why
    trained_as: list[str] = field(default_factory=list)  # trained combinations that share its files

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def stages(self) -> list[str]:
        """Return the stages that ran on it, in order: they took time, or found a failure."""
        ran = {*self.seconds, *(failure.stage for failure in self.failures)}
        return [stage for stage in STAGES if stage in ran]


@dataclass
class Verdict:
    outcomes: list[Outcome]
    stages: dict[str, float] = field(default_factory=dict)  # wall time of each stage (seconds)
    wall: float = 0.0  # of the whole check (seconds)
    launchers: str = "forked"  # or "real"
    versions: dict[str, str] = field(default_factory=dict)  # of Python and the packages that decide the result
    kept: Path | None = None  # the folder with projects and runs that are left

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.passed]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def counts(self) -> dict[str, int]:
        total, failed, cached = len(self.outcomes), len(self.failed), sum(outcome.cached for outcome in self.outcomes)
        shared = sum(bool(outcome.trained_as) for outcome in self.outcomes)
        return {"total": total, "passed": total - failed, "failed": failed, "cached": cached, "shared": shared}


def reproduce(outcome: Outcome, launchers: str = "forked") -> str:
    """The one command that shows the failures of a combination again, and leaves its project behind."""
    real = " --launchers real" if launchers == "real" else ""
    return f"ddp-template check {outcome.combination.as_filters}{real} --no-cache --keep"
