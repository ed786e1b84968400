"""The command `ddp-template fleet`."""

import json
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..options import errors_in_one_line, take_term_as_ctrl_c
from ..progress import watched
from ..questions import TEMPLATE
from ..reports.plain import plain
from ..scratch import scratch_folder
from ..workers import Workers
from .fleet import CLEAN, CONFLICTS, IMPOSSIBLE, NOTHING, Report, examine
from .history import NEXT, clone_history
from .releases import read_releases

ROOM = 2**30  # bytes
STYLES = {NOTHING: "green", CLEAN: "green", CONFLICTS: "yellow", IMPOSSIBLE: "red"}


def fleet(
    projects: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders of projects that the template has written.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="Update to this version, tag or commit, instead of the template as it is here."
        ),
    ] = None,
    changes: Annotated[bool, typer.Option("--changes", help="Name every file that would change.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON.")] = None,
) -> None:
    """Tell which version projects are on, and what an update would do to them. It is tried in copies of them.

    Exit code 0: all can be updated without a conflict; 1: some cannot; 2: the command itself is wrong.
    """
    take_term_as_ctrl_c()
    with errors_in_one_line():
        reports = examine_all(projects, to)
        show(reports, Console(), changes=changes)
        if json_file:
            json_file.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    raise typer.Exit(1 if any(report.state in (CONFLICTS, IMPOSSIBLE) for report in reports) else 0)


def examine_all(projects: Sequence[Path], to: str | None, template: Path = TEMPLATE) -> list[Report]:
    """Examine projects, some at a time. Raises RenderError where the template has no such version."""
    with scratch_folder(ROOM) as folder, Workers() as workers:
        history = clone_history(folder / "history", read_releases(template), template)
        target = history.find_version(to) if to else NEXT
        jobs = []
        for number, project in enumerate(projects):
            place = folder / str(number)
            place.mkdir()
            jobs.append(workers.submit(examine, project, history, target, place / "copy"))
        for _ in watched("Updating copies", transient=True)(as_completed(jobs), len(jobs)):
            pass
        return [job.result() for job in jobs]


def show(reports: Sequence[Report], console: Console, *, changes: bool) -> None:
    """Print a line for each project, and below them what their owners must know."""
    table = Table("project", "version", "update", "files that change", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[3].justify = "right"
    for report in reports:
        table.add_row(
            Text(plain(report.project), overflow="fold"),
            Text(report.version),
            Text(report.state, STYLES[report.state]),
            str(len(report.changes)),
        )
    if console.is_terminal:
        console.print(table)
    for report in reports:
        if not console.is_terminal:  # for grep and the like
            console.print(Text(f"{plain(report.project)}: {report.version}, {report.state}"), soft_wrap=True)
        words = [report.reason] if report.reason else []
        words += [f"conflict in {path}" for path in report.conflicts]
        words += report.changes if changes else []
        for line in words:
            console.print(Text(plain(f"{report.project}: {line}")), soft_wrap=True)
