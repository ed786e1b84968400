"""The command `ddp-template check`."""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from generator.answers.questions import TEMPLATE
from generator.check.pipeline import check as run_check
from generator.check.reports.json_file import write_json
from generator.check.reports.junit import write_junit
from generator.check.reports.page import write_page
from generator.check.reports.terminal import show
from generator.check.results import STAGES, Verdict
from generator.check.work import Order
from generator.cli.options import (
    Cover,
    Shard,
    ShownProgress,
    Since,
    Wanted,
    choose,
    errors_in_one_line,
    take_term_as_ctrl_c,
)
from generator.render.cache import Cache
from generator.render.workers import Workers


class Launchers(str, Enum):
    """What starts the ranks."""

    forked = "forked"
    real = "real"


def check(
    wanted: Wanted = None,
    cover: Cover = None,
    shard: Shard = None,
    since: Since = None,
    launchers: Annotated[
        Launchers, typer.Option(help="real: a covering set is started by its real launchers as well, cold.")
    ] = Launchers.forked,
    cache: Annotated[bool, typer.Option(help="Take over what an earlier check found of the same projects.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all projects and runs, not only those that fail.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to look at in a browser.")] = None,
) -> None:
    """Render, format, lint, type-check and train every combination of answers, or those that are chosen.

    Exit code 0: all is right; 1: something is wrong; 2: the command itself is.
    """
    take_term_as_ctrl_c()
    store = Cache()
    with errors_in_one_line(), Workers() as workers, ShownProgress(STAGES) as progress:
        chosen = choose(TEMPLATE, workers, wanted, cover, shard, since, cache=store)
        order = Order(
            chosen,
            cache=store if cache else None,
            keep=keep,
            launchers=launchers.value,
            progress=progress,
            selection=in_words(wanted or [], cover, shard, since),
        )
        verdict = run_check(order, workers)
    reports = {"JUnit": junit, "JSON": json, "page": html}
    with errors_in_one_line():
        written = write_reports(verdict, {name: path for name, path in reports.items() if path is not None})
    show(verdict, Console(), written)
    if verdict.kept:
        typer.echo(f"projects and runs: {verdict.kept}")
    raise typer.Exit(0 if verdict.passed else 1)


def in_words(wanted: Sequence[str], cover: str | None, shard: str | None, since: str | None) -> str:
    """Say what was chosen."""
    parts = [" ".join(wanted)] if wanted else []
    parts += [f"cover {cover}"] if cover else []
    parts += [f"shard {shard}"] if shard else []
    parts += [f"changed since {since}"] if since else []
    return ", ".join(parts) or "all"


def write_reports(verdict: Verdict, wanted: dict[str, Path]) -> dict[str, Path]:
    """Write the reports that are wanted, and return where. Raises OSError if that is impossible."""
    writers: dict[str, Callable[[Verdict, Path], None]] = {"JUnit": write_junit, "JSON": write_json, "page": write_page}
    for name, path in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[name](verdict, path)
    return wanted
