"""What rank 0 shows in a terminal: the messages of the log, a row for each evaluation, and a bar over the run."""

import logging
import math
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from . import metrics
from .throughput import UNIT, clock
from .tracking import METRICS

REDRAWN = 0.25  # seconds between two drawings of the bar
WIDTH, GAP = 9, 2  # of a column at least, and before it (characters)
UNKNOWN = "?"


class Terminal(logging.Handler):
    """A handler of the log, which leaves metrics to the rows and to the bar. If it is closed, the run continues."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self.console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self.bar = Progress(
            TextColumn("step {task.completed:,} of {task.total:,}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]}  {task.fields[left]} left", markup=False),
            console=self.console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
            transient=True,
        )
        self.steps = self.bar.add_task("", loss=UNKNOWN, left=UNKNOWN)
        self.first, self.total, self.began, self.drawn = math.inf, 0, 0.0, 0.0
        self.loss = self.rate = UNKNOWN  # of the last record
        self.names: list[str] = []  # of the columns of the last row

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message above the bar."""
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        if record.name != METRICS.name:
            try:
                self.console.print(level + self.format(record), style="yellow" if level else "", soft_wrap=True)
            except Exception:
                self.handleError(record)

    def begin(self, step: int, total: int) -> None:
        """Show the bar: of so many steps in all, after those that were taken before a resume."""
        self.first, self.total, self.began = step, total, time.monotonic()
        self.bar.update(self.steps, completed=step, total=total)
        with suppress(OSError):
            self.bar.start()
            self.console.show_cursor(True)  # a kill would leave it hidden

    def advance(self, step: int) -> None:
        """Count a step that is complete, and now and then draw the bar."""
        now = time.monotonic()
        if now - self.drawn > REDRAWN:
            self.drawn = now
            with suppress(OSError):
                self.bar.update(self.steps, completed=step, loss=self.loss, left=self.left(step), refresh=True)

    def note(self, loss: float, rate: float) -> None:
        """Keep what was recorded last: the bar never waits for a loss."""
        self.loss, self.rate = digits(loss), f"{rate:,.0f}"

    def left(self, step: int) -> str:
        """Return the time that the rest takes at the pace since the start."""
        if step <= self.first:
            return UNKNOWN
        return clock((time.monotonic() - self.began) / (step - self.first) * (self.total - step))

    def add_evaluation(self, progress: metrics.Progress, found: dict[str, dict[str, float]], decides: str) -> None:
        """Show a row: the metrics of the training and of each set, of which one decides which step is the best."""
        cells = {"step": f"{progress.step:,}", "epoch": f"{progress.epoch + 1:,}"}
        cells |= {f"{of}\n{name}": digits(value) for of, values in found.items() for name, value in values.items()}
        cells |= {"lr": digits(progress.lr), f"{UNIT}/s": self.rate, "left": self.left(progress.step)}
        important = ["step", decides, "left", "epoch", "train\nloss", f"{UNIT}/s"]
        by_rank = [*important, *sorted(cells, key=lambda name: name.startswith("train\n"))]
        self._add_row(cells, dict.fromkeys(by_rank), style="green" if progress.is_best_step() else "")

    def _add_row(self, cells: dict[str, str], by_rank: Iterable[str], style: str) -> None:
        """Print the cells that fit into a line, by their rank; and their names, if others were above the last row."""
        widths = {name: max(WIDTH, *map(cell_len, name.split("\n"))) for name in cells}
        room, fitting = self.console.width, set()
        for name in by_rank:
            if name in cells and widths[name] + GAP <= room:
                fitting.add(name)
                room -= widths[name] + GAP
        names = [name for name in cells if name in fitting]
        table = Table(box=None, show_header=names != self.names, padding=(0, 0, 0, GAP))
        for name in names:
            table.add_column(name, width=widths[name], justify="right", no_wrap=True)
        table.add_row(*(cells[name] for name in names), style=style)
        self.names = names
        with suppress(OSError):
            self.console.print(table)

    def show_test(self, found: dict[str, dict[str, float]]) -> None:
        """Show the metrics of the test sets, a line for each."""
        for name, values in found.items():
            line = ", ".join(f"{metric} {digits(value)}" for metric, value in values.items())
            with suppress(OSError):
                self.console.print(f"{name}: {line}", soft_wrap=True)

    def end(self) -> None:
        """Take the bar away."""
        with suppress(OSError):
            self.bar.stop()


def digits(value: float) -> str:
    """Return four digits of a number, or all of a large one."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:#.4g}".rstrip(".")
