"""Shows on stderr how far a command is, so that stdout has only what was asked for."""

import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track

# What a command calls while it works: so many things of a stage are done, of so many in all.
Advance = Callable[[str, int, int], None]


def watched(what: str, *, transient: bool = False) -> Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]:
    """Give a function that passes so many futures on as they come, and draws a bar.

    A transient one is gone when all is done, and is not there at all without a terminal.
    """
    stderr = Console(stderr=True)
    hidden = transient and not stderr.is_terminal
    return lambda futures, total: track(futures, what, total, console=stderr, transient=transient, disable=hidden)


class ShownProgress:
    """As a context manager: gives a function that shows how far each stage is, as bars or as lines."""

    def __init__(self, questions: Mapping[str, str]) -> None:
        """Take what each stage asks."""
        columns = TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.bars = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.tasks: dict[str, Any] = {}
        self.questions = questions

    def __enter__(self) -> Advance:
        self.bars.start()
        return self.advance

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def advance(self, stage: str, done: int, total: int) -> None:
        """Show that so many things of a stage are done."""
        if stage not in self.tasks:
            self.tasks[stage] = self.bars.add_task(stage, total=total)
        self.bars.update(self.tasks[stage], completed=done)
        if self.bars.disable and done == total:
            typer.echo(f"{stage}: {total} of {total} ({self.questions.get(stage, stage)})", err=True)
