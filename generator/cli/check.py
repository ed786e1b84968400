"""The command `ddp-template check`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from generator.check.pipeline import check as run_check
from generator.check.results import STAGES
from generator.check.state import CheckOptions
from generator.cli import options as shared
from generator.cli.check_report import show, write_json, write_junit, write_page
from generator.cli.options import Cover, Rotate, Shard, Since, Wanted
from generator.render.cache import Cache
from generator.render.workers import Workers


class Launchers(str, Enum):
    forked = "forked"
    real = "real"


def check(
    wanted: Wanted = None,
    rotate: Rotate = None,
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
    shared.term_as_ctrl_c()
    with shared.errors_in_one_line(), Workers() as workers, shared.show_progress(STAGES) as progress:
        chosen, known = shared.choose(workers, wanted, rotate, cover, shard, since), Cache() if cache else None
        options = CheckOptions(chosen, cache=known, keep=keep, launchers=launchers.value, progress=progress)
        verdict = run_check(options, workers)
    reports = [("JUnit", junit, write_junit), ("JSON", json, write_json), ("page", html, write_page)]
    show(verdict, Console(), {name: path for name, path, _ in reports if path})
    with shared.errors_in_one_line():
        for _, path, write in reports:
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write(verdict, path)
    if verdict.kept:
        typer.echo(f"projects and runs: {verdict.kept}")
    raise typer.Exit(0 if verdict.passed else 1)
