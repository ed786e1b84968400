"""The reports of a check: what the terminal shows, JSON, JUnit's XML, and a page that junit2html makes of that."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from junit2htmlreport.parser import Junit
from junitparser import Failure as JunitFailure
from junitparser import JUnitXml, Properties, Property, TestCase, TestSuite
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from generator.answers.combinations import Combination, text
from generator.check.results import STAGES, Failure, Outcome, Verdict, reproduce

ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: window titles, links
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
NOT_IN_XML = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MANY = 20  # more failures than this are shown in groups
PATH = re.compile(r"(?<![^\s'\"()=:,])[^\s'\"()=:,]*/[^\s'\"():,]*")
NUMBER = re.compile(r"0x[0-9a-f]+|\b(?=\w*\d)[0-9a-f]{7,}\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


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
    if (whole := round(seconds)) < 3600:
        return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def show(verdict: Verdict, console: Console, reports: Mapping[str, Path] = {}) -> None:
    """Print the verdict: stages, counts, notes, failures with their commands, and where the reports (by kind) are."""
    table = Table("stage", "what it asks", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("passed", "failed", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    ran = Counter(stage for outcome in verdict.outcomes for stage in outcome.stages)
    failed = Counter(stage for outcome in verdict.outcomes for stage in {each.stage for each in outcome.failures})
    for stage, asks in STAGES.items():
        if stage in ran or stage in verdict.stages:
            time = duration(verdict.stages[stage]) if stage in verdict.stages else "cached"
            wrong = Text(str(failed[stage]), style="bold red" if failed[stage] else "")
            table.add_row(stage, asks, str(ran[stage] - failed[stage]), wrong, time)
    console.print(table)
    counts = verdict.counts
    said = "{total} combination{s}: {passed} passed, {failed} failed; {cached} taken from the cache"
    said += ", {shared} trained as parts of others" if counts["shared"] else ""
    said = said.format(**counts, s="s" * (counts["total"] != 1))
    print_whole(f"{said}; {duration(verdict.wall)}", console, "bold green" if verdict.passed else "bold red")
    notes = Counter(plain(note) for outcome in verdict.outcomes for note in dict.fromkeys(outcome.notes))
    for note, count in notes.most_common():
        console.print(Text.assemble(("note: ", "yellow"), note, f" ({count} combination{'s' * (count != 1)})"))
    if not verdict.passed:
        show_failures(verdict, console)
    for kind, path in reports.items():
        print_whole(f"{kind}: {path}", console)


def show_failures(verdict: Verdict, console: Console) -> None:
    """Print the failures as a table, and below it one command for each that can be copied: nothing wraps it."""
    groups = failure_groups(verdict)
    table = Table("", "combination", "stage", "what is wrong", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].overflow = table.columns[3].overflow = "fold"
    for number, (outcomes, failure) in enumerate(groups, start=1):
        wrong = Text(headline(failure.text))
        table.add_row(str(number), Text(title(outcomes, verdict)), Text(failure.stage, "red"), wrong)
    console.print(table)
    for number, (outcomes, failure) in enumerate(groups, start=1):
        folder = f", left in {plain(failure.folder)}" if failure.folder else ""
        print_whole(f"# {number}: {failure.stage}{folder}", console, "dim")
        print_whole(reproduce(outcomes[0], verdict.launchers), console)
    console.print()


def print_whole(line: str, console: Console, style: str = "") -> None:
    console.print(Text(line), style=style, soft_wrap=True)


def failure_groups(verdict: Verdict) -> list[tuple[list[Outcome], Failure]]:
    """Return each failure with its outcome or, if there are many, equal failures together, the most frequent first."""
    failures = [(outcome, failure) for outcome in verdict.outcomes for failure in outcome.failures]
    equal: dict[object, list[tuple[Outcome, Failure]]] = {}
    for place, (outcome, failure) in enumerate(failures):
        same = (failure.stage, gist(failure.text, outcome.combination)) if len(failures) > MANY else place
        equal.setdefault(same, []).append((outcome, failure))
    groups = sorted(equal.values(), key=len, reverse=True)
    return [([*{id(one): one for one, _ in members}.values()], members[0][1]) for members in groups]


def gist(said: str, combination: Combination) -> str:
    """Return a failure's text without what differs between equal failures: names, paths, numbers, hashes."""
    own = re.compile(rf"(?<!\w)(?:{re.escape(combination.name)}|{re.escape(combination.as_filters)})(?!\w)")
    unnamed = own.sub("NAME", plain(said)) if combination.answers else plain(said)
    return NUMBER.sub("N", PATH.sub("PATH", unnamed)).strip()


def title(outcomes: list[Outcome], verdict: Verdict) -> str:
    """Return the name of a combination, or how many there are, and which answers they alone have in common."""
    name = outcomes[0].combination.name
    if len(outcomes) == 1:
        return name
    special = common_answers(outcomes) - common_answers(verdict.outcomes)
    answers = [answer for answer in outcomes[0].combination.answers if answer in special]
    shared = " ".join(f"{key}={text(value)}" for key, value in answers)
    return f"{len(outcomes)} combinations{', all with ' if shared else ''}{shared}, such as {name}"


def common_answers(outcomes: Iterable[Outcome]) -> set[tuple[str, object]]:
    return set.intersection(*({*outcome.combination.answers} for outcome in outcomes))


def write_json(verdict: Verdict, path: Path) -> None:
    combinations = []
    for outcome in verdict.outcomes:
        names = {"name": outcome.combination.name, "answers": dict(outcome.combination.answers)}
        combinations.append(asdict(outcome) | names)
    report = {"counts": verdict.counts, "wall": verdict.wall, "stages": verdict.stages, "combinations": combinations}
    path.write_text(json.dumps(report, indent=1) + "\n")


def write_junit(verdict: Verdict, path: Path) -> None:
    """Write a suite for each stage, with a test for each combination on which it ran."""
    report = JUnitXml("ddp-template check")
    for stage in dict.fromkeys(stage for outcome in verdict.outcomes for stage in outcome.stages):
        suite = TestSuite(stage)
        for key, value in {"launchers": verdict.launchers, **verdict.versions}.items():
            suite.add_property(key, plain(value))
        suite.add_testcases([test_case(each, stage, verdict) for each in verdict.outcomes if stage in each.stages])
        report.add_testsuite(suite)
    report.update_statistics()
    report.write(str(path))


def test_case(outcome: Outcome, stage: str, verdict: Verdict) -> TestCase:
    case = TestCase(plain(outcome.combination.name), f"ddp-template.{stage}", round(outcome.seconds.get(stage, 0.0), 3))
    properties = Properties()
    for name, value in [("cached", str(outcome.cached).lower()), *(("note", note) for note in outcome.notes)]:
        properties.add_property(Property(name, plain(value)))
    case.append(properties)
    if failures := [failure for failure in outcome.failures if failure.stage == stage]:
        # One for all of them: viewers show only the first one of a test.
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        case.result = [JunitFailure(headline(failures[0].text) + more, "failure")]
        parts = [failure.text + (f"\nleft in {failure.folder}" if failure.folder else "") for failure in failures]
        again = f"To see it again: {reproduce(outcome, verdict.launchers)}"
        case.result[0].text = plain("\n\n".join([*parts, again]))
    return case


def write_page(verdict: Verdict, path: Path) -> None:
    """Write the JUnit report as one HTML file that needs no other. Raises OSError if that is not possible."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "ddp-template check.xml"  # the page has this name as its title
        write_junit(verdict, junit)
        path.write_text(str(Junit(str(junit)).html()), encoding="utf-8")
