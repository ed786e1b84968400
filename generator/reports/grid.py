"""Where a combination stands in the grid of answers: tables side by side, with rows and columns that are nested."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..combinations import text
from ..questions import Question
from ..results import Outcome
from .summary import words

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
    """Give each question with those of its answers that a combination has, in the order of the choices."""
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
