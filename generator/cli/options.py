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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, track

from generator.answers.combinations import Combination, shaping_questions
from generator.answers.selection import SelectionError, covering, select
from generator.answers.selection import shard as shard_of
from generator.check.results import Advance
from generator.diff.versions import changed_combinations
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
Cover = Annotated[
    str | None,
    typer.Option("--cover", metavar="2|3", help="Only a few, in which every legal pair (3: triple) of answers occurs."),
]
Shard = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Only part I of N, such as 1/4; the parts are equally large."),
]

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="REVISION", help="Only those whose project differs from that git revision."),
]


def choose(
    template: Path,
    workers: Workers,
    wanted: Sequence[str] | None,
    cover: str | None,
    shard: str | None,
    since: str | None = None,
    *,
    cache: Cache | None = None,
) -> list[Combination]:
    """Return the legal combinations that the options choose, in the order of copier.yml. With since there may be none.

    What is wanted is compared with the revision, then covered, then divided. Raises SelectionError if an option
    makes no sense, and RenderError if no combination is legal or there is no such revision.
    """
    strength = parse_cover(cover) if cover is not None else None
    part = parse_shard(shard) if shard is not None else None
    legal = legal_combinations(template, workers, cache)
    chosen = select(legal, wanted or [], shaping_questions(template))
    if since is not None:
        chosen = changed_since(since, template, workers, chosen, cache)
    if strength is not None and chosen:
        chosen = covering(chosen, strength)
    return shard_of(chosen, *part) if part else chosen


def changed_since(
    revision: str, template: Path, workers: Workers, combinations: Sequence[Combination], cache: Cache | None
) -> list[Combination]:
    """Return those of the combinations whose project is another one than in a revision of the template's repository."""
    with tempfile.TemporaryDirectory() as folder:
        old = snapshot_of_revision(Path(folder) / "old", revision, template)
        new = take_snapshot(Path(folder) / "new", template)
        return changed_combinations(old, new, workers, among=combinations, cache=cache, watch=watched("Comparing"))


def parse_cover(cover: str) -> int:
    """Return the strength that --cover names. Raises SelectionError if it is no number."""
    if not re.fullmatch("[0-9]{1,3}", cover):
        raise SelectionError(f"--cover {cover} is no number: 2 covers every pair of answers, 3 every triple")
    return int(cover)


def parse_shard(shard: str) -> tuple[int, int]:
    """Return the part and the number of parts that --shard names. Raises SelectionError if it does not."""
    numbers = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", shard)
    if not numbers or int(numbers[2]) == 0:
        raise SelectionError(f"--shard {shard} is not I/N, such as 1/4, the first of four parts")
    part, parts = int(numbers[1]), int(numbers[2])
    if parts > MOST_PARTS:
        raise SelectionError(f"--shard {shard} has too many parts: there are {MOST_PARTS} at most")
    return part, parts


def take_term_as_ctrl_c() -> None:
    """Let what ends a batch job leave as Ctrl-C does: nothing stays behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with exit code 2, and one line, where the user can mend what is wrong."""
    try:
        yield
    except (RenderError, SelectionError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None


def watched(what: str, *, transient: bool = False) -> Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]:
    """Return a function that passes so many futures on as they come, and draws a bar.

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
