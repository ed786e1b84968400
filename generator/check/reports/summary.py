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
PATH = re.compile(r"(?<![^\s'\"()=:,])[^\s'\"()=:,]*/[^\s'\"():,]*")
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

    numbers: list[int]  # of their outcomes; the first one stands for all of them
    failure: Failure  # that of the first one
    title: str  # the combination's name, or how many there are, and what they share


def stages_of(outcome: Outcome) -> list[str]:
    """The stages that ran on a combination, in their order: those that took time, and those that found a failure."""
    ran = {*outcome.seconds, *(failure.stage for failure in outcome.failures)}
    return [stage for stage in STAGES if stage in ran]


def stage_summaries(verdict: Verdict) -> list[StageSummary]:
    """Count what each stage found, for the stages that ran on any combination or took any time."""
    ran = Counter(stage for outcome in verdict.outcomes for stage in stages_of(outcome))
    failed = Counter(stage for outcome in verdict.outcomes for stage in {each.stage for each in outcome.failures})
    return [
        StageSummary(stage, asks, ran[stage] - failed[stage], failed[stage], verdict.stages.get(stage))
        for stage, asks in STAGES.items()
        if stage in ran or stage in verdict.stages
    ]


def counts(verdict: Verdict) -> str:
    """Say in one line how many combinations passed, failed, were known already, or were not trained for others were."""
    said = "{total} combination{s}: {passed} passed, {failed} failed; {cached} taken from the cache"
    said += ", {shared} trained as parts of others" if verdict.counts["shared"] else ""
    return said.format(**verdict.counts, s="s" * (verdict.counts["total"] != 1))


def failure_groups(verdict: Verdict) -> list[FailureGroup]:
    """Return each failure as a group of its own or, if there are many, equal ones together, the largest first."""
    failures = [(number, failure) for number, outcome in enumerate(verdict.outcomes) for failure in outcome.failures]
    equal: dict[object, list[tuple[int, Failure]]] = {}
    for place, (number, failure) in enumerate(failures):
        combination = verdict.outcomes[number].combination
        same = (failure.stage, gist(failure.text, combination)) if len(failures) > MANY else place
        equal.setdefault(same, []).append((number, failure))
    general = common_answers(verdict.outcomes)  # which say nothing about a group
    groups = []
    for members in sorted(equal.values(), key=len, reverse=True):
        numbers = [*dict.fromkeys(number for number, _ in members)]
        outcomes = [verdict.outcomes[number] for number in numbers]
        title = outcomes[0].combination.name
        if len(outcomes) > 1:
            special = common_answers(outcomes) - general
            shared = " ".join(f"{key}={word}" for key, word in words(outcomes[0].combination) if (key, word) in special)
            title = f"{len(outcomes)} combinations{', all with ' if shared else ''}{shared}, such as {title}"
        groups.append(FailureGroup(numbers, members[0][1], title))
    return groups


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
    return Counter(plain(note) for outcome in verdict.outcomes for note in dict.fromkeys(outcome.notes)).most_common()
