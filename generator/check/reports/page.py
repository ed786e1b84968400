"""The report to look at: one HTML file that needs nothing else, neither a server nor a network."""

import base64
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from generator.answers.combinations import text
from generator.answers.questions import Question
from generator.check.reports import summary
from generator.check.reports.summary import duration, plain, words
from generator.check.results import Outcome, Verdict, reproduce

MOST_COLUMNS, MOST_ROWS = 12, 32  # of one table: what fits on a phone, and on a screen
Axis = list[tuple[str, list[str]]]  # questions, each with its answers as words
Answers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Headings:
    """The answers to a question at the edge of a table, each across as many rows or columns as it applies to."""

    key: str
    words: list[str]
    span: int


@dataclass(frozen=True)
class Panel:
    """One table: the answers that all of it shares, and its rows of outcomes' numbers; None: no such combination."""

    answers: Answers
    rows: list[list[int | None]]

    @property
    def numbers(self) -> list[int]:
        """The outcomes that it shows."""
        return [cell for row in self.rows for cell in row if cell is not None]


@dataclass(frozen=True)
class Grid:
    """All tables, which have the same headings."""

    fixed: Answers  # that all combinations share
    rows: list[Headings]  # from the outermost, as the columns
    columns: list[Headings]
    panels: list[Panel]


def arrange(questions: Sequence[Question], outcomes: Sequence[Outcome]) -> Grid:
    """Lay out the outcomes: the first questions nest in the rows, the last in the columns, others make tables.

    Only answers that occur get a place, and only tables in which there is a combination.
    """
    axis = occurring_answers(questions, outcomes)
    rows, tables, columns = share_out([(key, found) for key, found in axis if len(found) > 1])
    fixed = tuple((key, found[0]) for key, found in axis if len(found) == 1)
    numbers = {frozenset(words(outcome.combination)): number for number, outcome in enumerate(outcomes)}
    panels = []
    for shared in assignments(tables):
        sides = [(*fixed, *shared, *side) for side in assignments(rows)]
        tops = assignments(columns)
        panels.append(Panel(shared, [[numbers.get(frozenset((*side, *top))) for top in tops] for side in sides]))
    return Grid(fixed, headings(rows), headings(columns), [panel for panel in panels if panel.numbers])


def occurring_answers(questions: Sequence[Question], outcomes: Sequence[Outcome]) -> Axis:
    """Return each question with those of its answers that a combination has, in the order of the choices."""
    found = {answer for outcome in outcomes for answer in words(outcome.combination)}
    choices = [(question.key, [text(choice.value) for choice in question.choices]) for question in questions]
    axis = [(key, [word for word in known if (key, word) in found]) for key, known in choices]
    return [(key, occurring) for key, occurring in axis if occurring]


def share_out(axis: Axis) -> tuple[Axis, Axis, Axis]:
    """Split the questions into those of the rows, of the tables, and of the columns, so that a table fits a screen."""
    end = min(len(axis), 1)
    begin = len(axis)
    while begin > end and (begin == len(axis) or size(axis[begin - 1 :]) <= MOST_COLUMNS):
        begin -= 1
    while end < begin and size(axis[: end + 1]) <= MOST_ROWS:
        end += 1
    return axis[:end], axis[end:begin], axis[begin:]


def size(axis: Axis) -> int:
    """How many combinations of answers there are."""
    return math.prod(len(found) for _, found in axis)


def assignments(axis: Axis) -> list[Answers]:
    """Every combination of answers, the last question's changing first."""
    return [*itertools.product(*([(key, word) for word in found] for key, found in axis))]


def headings(axis: Axis) -> list[Headings]:
    """Return the headings of the rows, or of the columns, that assignments() returns."""
    return [
        Headings(key, found * size(axis[:depth]), size(axis[depth + 1 :])) for depth, (key, found) in enumerate(axis)
    ]


HERE = Path(__file__).parent
LONGEST = 40_000  # characters of one failure's text; what is in the middle of a longer one is left out


def write_page(verdict: Verdict, path: Path) -> None:
    """Write the page. Raises OSError if that is not possible."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"duration": duration, "headline": summary.headline, "shown": shown}
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    page = environment.get_template("page.html.jinja").render(
        verdict=verdict,
        style=Markup(style),
        script=Markup(script),
        # A browser runs this script and no other, even if some text should get around the escaping.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=summary.counts(verdict),
        stages=summary.stage_summaries(verdict),
        grid=arrange(verdict.questions, verdict.outcomes),
        failures_in=lambda panel: sum(not verdict.outcomes[number].passed for number in panel.numbers),
        groups=summary.failure_groups(verdict),
        suspects=suspects(verdict) if len(verdict.failed) > 1 else [],
        notes=summary.grouped_notes(verdict),
        data=[details(outcome, verdict.launchers) for outcome in verdict.outcomes],
    )
    path.write_text(page, encoding="utf-8")


def shown(text: str) -> str:
    """Return what is shown of a failure's text: all of it, but of a very long one the beginning and the end."""
    cleaned = plain(text).strip("\n")
    left_out = len(cleaned) - LONGEST
    if left_out <= 0:
        return cleaned
    half = LONGEST // 2
    return f"{cleaned[:half]}\n\n[... {left_out} characters left out; the JSON report has all ...]\n\n{cleaned[-half:]}"


def suspects(verdict: Verdict) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Return the questions whose answers fail unequally often: each answer with how many fail, and of how many."""
    total = Counter(answer for outcome in verdict.outcomes for answer in words(outcome.combination))
    failed = Counter(answer for outcome in verdict.failed for answer in words(outcome.combination))
    rows = [
        (key, [(word, failed[key, word], total[key, word]) for word in found])
        for key, found in occurring_answers(verdict.questions, verdict.outcomes)
    ]
    return [(key, row) for key, row in rows if len({bad / count for _, bad, count in row}) > 1]


def details(outcome: Outcome, launchers: str) -> dict[str, Any]:
    """Return what the page shows when a cell is opened, as JSON can hold it."""
    failed = ", ".join(dict.fromkeys(failure.stage for failure in outcome.failures))
    said = [f"failed in {failed}" if failed else "passed"]
    said += ["from the cache"] * outcome.cached + ["see notes"] * bool(outcome.notes)
    return {
        "name": plain(outcome.combination.name),
        "answers": words(outcome.combination),
        "result": "; ".join(said),
        "passed": outcome.passed,
        "seconds": [(stage, duration(outcome.seconds.get(stage, 0.0))) for stage in summary.stages_of(outcome)],
        "weights": plain(outcome.weights),
        "notes": [plain(note) for note in outcome.notes],
        "failures": [
            {"stage": each.stage, "text": shown(each.text), "folder": plain(each.folder or "")}
            for each in outcome.failures
        ],
        "command": reproduce(outcome, launchers),
    }
