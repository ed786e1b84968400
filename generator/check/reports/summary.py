"""What the reports have in common: counts by stage, failures that are the same, notes that are the same."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from generator.answers.combinations import Combination, text
from generator.check.results import STAGES, Failure, Outcome, Verdict

ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: window titles, links
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
NOT_IN_XML = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(text: str) -> str:
    """Leave what XML 1.0 allows, a terminal prints as it is, and UTF-8 can hold; lines end with a newline alone."""
    lines = ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return NOT_IN_XML.sub("", lines)


def headline(text: str) -> str:
    """Return the line that says most: of a traceback the exception, else the first; "" if there is no text."""
    lines = [line for line in plain(text).splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback "):
        return next((line for line in lines[1:] if not line[0].isspace()), lines[0])
    return lines[0].strip() if lines else ""


def duration(seconds: float) -> str:
    """Return a time as people read it: 0.4 s, 12 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


MANY = 20  # more failures than this are shown in groups
PATH = re.compile(r"[^\s'\"()=:,]*/[^\s'\"():,]*")
NUMBER = re.compile(r"0x[0-9a-f]+|\b(?=\w*\d)[0-9a-f]{7,}\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class StageSummary:
    """What one stage found out about all combinations on which it ran."""

    stage: str
    asks: str
    passed: int
    failed: int
    wall: float | None  # None where the stage did not run this time: all was known


@dataclass(frozen=True)
class FailureGroup:
    """Combinations that fail in one stage, and in the same way as far as their texts say."""

    outcomes: tuple[Outcome, ...]
    failure: Failure  # that of the first outcome
    common: tuple[tuple[str, str], ...] = ()  # answers that all of them share and that not every combination has

    @property
    def outcome(self) -> Outcome:
        """The one that stands for all of them."""
        return self.outcomes[0]

    @property
    def title(self) -> str:
        """The combination's name, or how many there are, and what they share."""
        if len(self.outcomes) == 1:
            return self.outcome.combination.name
        shared = f", all with {' '.join(f'{key}={value}' for key, value in self.common)}" if self.common else ""
        return f"{len(self.outcomes)} combinations{shared}, such as {self.outcome.combination.name}"


def stages_of(outcome: Outcome) -> list[str]:
    """The stages that ran on a combination, in their order: those that took time, and those that found a failure."""
    ran = {*outcome.seconds, *(failure.stage for failure in outcome.failures)}
    return [*(stage for stage in STAGES if stage in ran), *sorted(ran - set(STAGES))]


def stage_summaries(verdict: Verdict) -> list[StageSummary]:
    """Count what each stage found, for the stages that ran on any combination or took any time."""
    ran, failed = Counter[str](), Counter[str]()
    for outcome in verdict.outcomes:
        ran.update(stages_of(outcome))
        failed.update({failure.stage for failure in outcome.failures})
    return [
        StageSummary(stage, STAGES.get(stage, ""), ran[stage] - failed[stage], failed[stage], verdict.stages.get(stage))
        for stage in [*STAGES, *sorted(ran.keys() - STAGES.keys())]
        if stage in ran or stage in verdict.stages
    ]


def counts(verdict: Verdict) -> str:
    """Say in one line how many combinations passed, failed and were known already."""
    total, failed = len(verdict.outcomes), len(verdict.failed)
    cached = sum(outcome.cached for outcome in verdict.outcomes)
    plural = "" if total == 1 else "s"
    return f"{total} combination{plural}: {total - failed} passed, {failed} failed; {cached} taken from the cache"


def failure_groups(verdict: Verdict, many: int = MANY) -> list[FailureGroup]:
    """Return each failure as a group of its own, or, where there are many, equal ones together, the largest first."""
    failures = [(outcome, failure) for outcome in verdict.outcomes for failure in outcome.failures]
    if len(failures) <= many:
        return [FailureGroup((outcome,), failure) for outcome, failure in failures]
    groups: dict[tuple[str, str], list[tuple[Outcome, Failure]]] = {}
    for outcome, failure in failures:
        groups.setdefault((failure.stage, gist(failure.text, outcome.combination)), []).append((outcome, failure))
    general = common_answers(verdict.outcomes)
    return [make_group(group, general) for group in sorted(groups.values(), key=len, reverse=True)]


def make_group(members: list[tuple[Outcome, Failure]], general: set[tuple[str, str]]) -> FailureGroup:
    """Make the group of equal failures; answers in general, which all combinations share, say nothing about it."""
    outcomes = tuple({outcome.combination: outcome for outcome, _ in members}.values())
    special = common_answers(outcomes) - general
    shared = tuple(answer for answer in words(outcomes[0].combination) if answer in special)
    return FailureGroup(outcomes, members[0][1], shared)


def gist(said: str, combination: Combination) -> str:
    """A failure's text without what differs between equal failures: the combination's name, paths, numbers, hashes."""
    own = re.compile(rf"(?<!\w)(?:{re.escape(combination.name)}|{re.escape(combination.as_filters)})(?!\w)")
    unnamed = own.sub("NAME", plain(said)) if combination.answers else plain(said)
    return NUMBER.sub("N", PATH.sub("PATH", unnamed)).strip()


def common_answers(outcomes: Iterable[Outcome]) -> set[tuple[str, str]]:
    """The answers that all of some combinations share, as they are written on the command line."""
    answers = [set(words(outcome.combination)) for outcome in outcomes]
    return set.intersection(*answers) if answers else set()


def words(combination: Combination) -> list[tuple[str, str]]:
    """The answers of a combination, each as it is written on a command line."""
    return [(key, text(value)) for key, value in combination.answers]


def grouped_notes(verdict: Verdict) -> list[tuple[str, int]]:
    """Return each note once, with the number of combinations that have it, the most frequent first."""
    notes = Counter(plain(note) for outcome in verdict.outcomes for note in dict.fromkeys(outcome.notes))
    return notes.most_common()
