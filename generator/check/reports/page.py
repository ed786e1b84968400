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
from generator.check.reports.summary import (
    counts,
    duration,
    failure_groups,
    grouped_notes,
    headline,
    plain,
    stage_summaries,
    stages_of,
    words,
)
from generator.check.results import Outcome, Verdict, reproduce

MOST_COLUMNS, MOST_ROWS = 12, 24  # of one table: so many columns fit on a phone, so many rows on a screen
Axis = list[tuple[str, list[str]]]  # questions, each with its answers as words


@dataclass(frozen=True)
class Heading:
    """One answer at the edge of a table, across as many rows or columns as it applies to."""

    word: str
    span: int


@dataclass(frozen=True)
class Row:
    """One row of a table: the headings that begin here, and what is in its columns."""

    headings: list[Heading]
    cells: list[int | None]  # the outcome's number; None where there is no such combination


@dataclass(frozen=True)
class Panel:
    """One table: the answers that all of it shares, and its rows."""

    answers: list[tuple[str, str]]
    rows: list[Row]

    @property
    def numbers(self) -> list[int]:
        """The outcomes that it shows."""
        return [cell for row in self.rows for cell in row.cells if cell is not None]


@dataclass(frozen=True)
class Grid:
    """All tables, which have the same headings."""

    fixed: list[tuple[str, str]]  # the answers that all combinations share
    row_questions: list[str]
    columns: list[tuple[str, list[Heading]]]  # each question of the columns, from the outermost, with its headings
    panels: list[Panel]


def arrange(questions: Sequence[Question], outcomes: Sequence[Outcome]) -> Grid:
    """Lay out the outcomes: the first questions nest in the rows, the last in the columns, others make tables.

    Only answers that occur get a place, and only tables in which there is a combination.
    """
    axis = occurring_answers(questions, outcomes)
    rows, tables, columns = share_out([(key, found) for key, found in axis if len(found) > 1])
    fixed = {key: found[0] for key, found in axis if len(found) == 1}
    numbers = {frozenset(words(outcome.combination)): number for number, outcome in enumerate(outcomes)}
    panels = []
    for shared in assignments(tables):
        panel = Panel(list(shared.items()), make_rows(rows, columns, {**fixed, **shared}, numbers))
        if panel.numbers:
            panels.append(panel)
    headings = [
        (key, [Heading(word, size(columns[depth + 1 :])) for _ in range(size(columns[:depth])) for word in found])
        for depth, (key, found) in enumerate(columns)
    ]
    return Grid(list(fixed.items()), [key for key, _ in rows], headings, panels)


def occurring_answers(questions: Sequence[Question], outcomes: Sequence[Outcome]) -> Axis:
    """Return each question with those of its answers that a combination has, in the order of the choices."""
    known = {question.key: [text(choice.value) for choice in question.choices] for question in questions}
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for key, word in words(outcome.combination):
            found.setdefault(key, {})[word] = None
    order = {key: [*(word for word in known.get(key, []) if word in has), *has] for key, has in found.items()}
    return [(key, list(dict.fromkeys(has))) for key, has in order.items()]


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


def assignments(axis: Axis) -> list[dict[str, str]]:
    """Every combination of answers, the last question's changing first."""
    keys = [key for key, _ in axis]
    return [dict(zip(keys, row, strict=True)) for row in itertools.product(*(found for _, found in axis))]


def make_rows(
    rows: Axis, columns: Axis, others: dict[str, str], numbers: dict[frozenset[tuple[str, str]], int]
) -> list[Row]:
    """Make the rows of the table that has the other answers."""
    made = []
    for index, side in enumerate(assignments(rows)):
        spans = [size(rows[depth + 1 :]) for depth in range(len(rows))]
        begins = [Heading(side[key], span) for (key, _), span in zip(rows, spans, strict=True) if index % span == 0]
        cells = [frozenset({**others, **side, **top}.items()) for top in assignments(columns)]
        made.append(Row(begins, [numbers.get(cell) for cell in cells]))
    return made


HERE = Path(__file__).parent
DENSE = 1500  # with more combinations than this, the cells are smaller
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
    environment.filters |= {"duration": duration, "headline": headline, "shown": shown}
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    page = environment.get_template("page.html.jinja").render(
        verdict=verdict,
        style=Markup(style),
        script=Markup(script),
        # A browser runs this script and no other, even if some text should get around the escaping.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=counts(verdict),
        cached=sum(outcome.cached for outcome in verdict.outcomes),
        stages=stage_summaries(verdict),
        grid=arrange(verdict.questions, verdict.outcomes),
        failures_in=lambda panel: sum(not verdict.outcomes[number].passed for number in panel.numbers),
        dense=len(verdict.outcomes) > DENSE,
        kinds=[cell_kind(outcome) for outcome in verdict.outcomes],
        groups=group_views(verdict),
        suspects=suspects(verdict) if len(verdict.failed) > 1 else [],
        notes=grouped_notes(verdict),
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


def cell_kind(outcome: Outcome) -> str:
    """Return the CSS classes of an outcome's cell."""
    kinds = ["pass" if outcome.passed else "fail"]
    return " ".join([*kinds, *["cached"] * outcome.cached, *["noted"] * bool(outcome.notes)])


def in_words(outcome: Outcome) -> str:
    """Say how a combination did, such as: failed in train, resume; from the cache."""
    failed = list(dict.fromkeys(failure.stage for failure in outcome.failures))
    result = f"failed in {', '.join(failed)}" if failed else "passed"
    return result + ("; from the cache" if outcome.cached else "") + ("; see notes" if outcome.notes else "")


def group_views(verdict: Verdict) -> list[dict[str, Any]]:
    """Return each group of failures, with the numbers of its outcomes and the command for the first."""
    numbers = {outcome.combination: number for number, outcome in enumerate(verdict.outcomes)}
    return [
        {
            "title": group.title,
            "failure": group.failure,
            "members": [(numbers[outcome.combination], outcome.combination.name) for outcome in group.outcomes],
            "command": reproduce(group.outcome, verdict.launchers),
        }
        for group in failure_groups(verdict)
    ]


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
    return {
        "name": plain(outcome.combination.name),
        "answers": words(outcome.combination),
        "result": in_words(outcome),
        "passed": outcome.passed,
        "seconds": [(stage, duration(outcome.seconds.get(stage, 0.0))) for stage in stages_of(outcome)],
        "weights": plain(outcome.weights),
        "notes": [plain(note) for note in outcome.notes],
        "failures": [
            {"stage": failure.stage, "text": shown(failure.text), "folder": plain(failure.folder or "")}
            for failure in outcome.failures
        ],
        "command": reproduce(outcome, launchers),
    }
