"""What commands have in common: options that choose combinations, progress on stderr, and errors in one line."""

import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, track

from generator.answers import combinations
from generator.answers.combinations import Combination, SelectionError
from generator.answers.questions import TEMPLATE
from generator.check.results import Advance
from generator.diff.versions import changed_combinations, read_version, template_errors
from generator.render.cache import Cache
from generator.render.project import RenderError
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers, legal_combinations

MOST_PARTS = 256  # jobs of one matrix on GitHub

Wanted = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE|NAME]...",
        help="Only combinations with these answers (launcher=slurm,mpirun takes either), or those of these names.",
        show_default=False,
    ),
]
Rotate = Annotated[
    str | None, typer.Option(metavar="KEY", help="Only one of those that differ in this answer alone: they take turns.")
]
Cover = Annotated[
    str | None, typer.Option(metavar="2|3", help="Only a few, in which every legal pair (3: triple) of answers occurs.")
]
Shard = Annotated[
    str | None, typer.Option(metavar="I/N", help="Only part I of N, such as 1/4; the parts are equally large.")
]
Since = Annotated[
    str | None, typer.Option(metavar="REVISION", help="Only those whose project differs from that git revision.")
]


def choose(
    workers: Workers,
    wanted: Sequence[str] | None,
    rotated: str | None,
    cover: str | None,
    part: str | None,
    since: str | None = None,
) -> list[Combination]:
    """Return what the options choose: compared with since, which may leave nothing, then rotated, covered, divided."""
    questions = combinations.shaping_questions()
    combinations.read_filters(wanted or [], questions)  # what is wrong is said before Copier is asked
    if cover is not None and not re.fullmatch("[0-9]{1,3}", cover):
        raise SelectionError(f"--cover {cover} is no number: 2 covers every pair of answers, 3 every triple")
    numbers = parse_shard(part) if part is not None else None
    chosen = combinations.select(legal_combinations(TEMPLATE, workers, Cache()), wanted or [], questions)
    if since is not None:
        with tempfile.TemporaryDirectory() as folder:
            old = snapshot_of_revision(Path(folder) / "old", since)
            new = take_snapshot(Path(folder) / "new")
            versions = read_version(old, workers, Cache()), read_version(new, workers, Cache())
            chosen = changed_combinations(*versions, chosen, workers, watched("Comparing"))
    if rotated is not None:
        chosen = combinations.rotate(chosen, rotated, questions)
    if cover is not None and chosen:
        chosen = combinations.covering(chosen, int(cover))
    return combinations.shard(chosen, *numbers) if numbers else chosen


def parse_shard(text: str) -> tuple[int, int]:
    numbers = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    part, parts = map(int, numbers.groups()) if numbers else (0, 0)
    if not parts:
        raise SelectionError(f"--shard {text} is not I/N, such as 1/4, the first of four parts")
    if parts > MOST_PARTS:
        raise SelectionError(f"--shard {text} has too many parts: there are {MOST_PARTS} at most")
    return part, parts


def term_as_ctrl_c() -> None:
    """Handle TERM, which ends batch jobs, like Ctrl-C: leave nothing behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn an error that the user can fix into one line and exit code 2."""
    try:
        with template_errors(TEMPLATE):
            yield
    except (RenderError, SelectionError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None


def watched(what: str, *, transient: bool = False) -> Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]:
    """Return what passes futures on as they come, and draws a bar: a transient one only in a terminal."""
    stderr = Console(stderr=True)
    hidden = transient and not stderr.is_terminal
    return lambda futures, total: track(futures, what, total, console=stderr, transient=transient, disable=hidden)


@contextmanager
def show_progress(questions: Mapping[str, str]) -> Iterator[Advance]:
    """Yield a function that shows how far each stage, which asks its question, is: as bars or as lines."""
    columns = TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    tasks: dict[str, TaskID] = {}

    def advance(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done)
        if bars.disable and done == total:
            typer.echo(f"{stage}: {total} of {total} ({questions.get(stage, stage)})", err=True)

    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        yield advance
