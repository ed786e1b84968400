"""The commands `ddp-template update-check`, `release-check`, `fleet` and `migrate`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from generator.answers.questions import TEMPLATE
from generator.cli.check_report import plain
from generator.cli.options import errors_in_one_line, show_progress, term_as_ctrl_c, watched
from generator.render.git import run
from generator.render.scratch import scratch_folder
from generator.render.workers import Workers
from generator.update.fleet import CLEAN, CONFLICTS, IMPOSSIBLE, NOTHING, Report, examine_all
from generator.update.gate import PAIRS, PARTS, STRENGTH, Gate, Part
from generator.update.history import check_release, read_releases, steps_of_release
from generator.update.migrate import move_project
from generator.update.replay import ROOM

STYLES = {NOTHING: "green", CLEAN: "green", CONFLICTS: "yellow", IMPOSSIBLE: "red"}


def update_check(
    revisions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[REVISION]...",
            help="Update from these versions, tags or commits; without any from every released version, "
            "at once and through each version between.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Carry over only projects with this answer; may be repeated."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Carry over projects of all combinations, instead of a covering set.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, help="How many pairs of answers to go there and back between.")] = PAIRS,
    seed: Annotated[int, typer.Option(help="Of the choice of these pairs.")] = 0,
) -> None:
    """Update projects of released versions, with edits and without, to the template as it is in this clone.

    Exit code 0: nothing is lost; 1: something is; 2: the command itself is wrong.
    """
    term_as_ctrl_c()
    with errors_in_one_line():
        strength = None if every else STRENGTH
        parts = try_updates(Gate(revisions or (), only=only or (), strength=strength, pairs=pairs, seed=seed))
    raise typer.Exit(1 if any(part.wrong for part in parts) else 0)


def try_updates(gate: Gate) -> list[Part]:
    """Update projects, print what was found, and then a line for each part, and return it."""
    # The folder goes when the workers are gone.
    with scratch_folder(ROOM) as folder, Workers() as workers, show_progress(PARTS) as gate.progress:
        parts = gate.run(workers, folder)
    console = Console()
    table = Table("part", "question", "cases", "wrong", "seconds", box=None, pad_edge=False)
    for part in parts:
        for wrong in part.wrong:
            console.print(Text.assemble((part.name, "red"), " ", wrong), soft_wrap=True)
        for note in part.notes:
            console.print(Text.assemble((f"{part.name}, note", "yellow"), " ", note), soft_wrap=True)
        count = f"[red]{len(part.wrong)}[/]" if part.wrong else "0"
        table.add_row(part.name, PARTS[part.name], str(part.cases), count, f"{part.seconds:.1f}")
    console.print(table, soft_wrap=True)
    return parts


def release_check(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Such as 1.2.0.", show_default=False)],
    script: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the commands to a file as well.")] = None,
) -> None:
    """Say whether the last commit can be released under a version, and which commands do so.

    Exit code 0: it can; 1: an update from a released version would lose something; 2: something else is missing.
    """
    term_as_ctrl_c()
    with errors_in_one_line():
        check_release(version)
        # There is nothing to update from before the first version.
        parts = try_updates(Gate(stop_early=True)) if read_releases() else []
        if any(part.wrong for part in parts):
            typer.echo(f"error: {version} cannot be released: updates to it lose what is named above", err=True)
            raise typer.Exit(1)
        commands = "".join(f"{step}\n" for step in steps_of_release(version, run(TEMPLATE, "rev-parse", "HEAD")))
        typer.echo(f"\nNothing is lost. These commands release it:\n\n{commands}", nl=False)
        if script:
            script.write_text(commands)


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
    drift: Annotated[
        bool, typer.Option("--drift", help="Name every file that differs from what the recorded version writes.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON.")] = None,
) -> None:
    """Tell which version projects are on, where they differ from it, and what an update would do to copies of them.

    Exit code 0: all can be updated without a conflict; 1: some cannot; 2: the command itself is wrong.
    """
    term_as_ctrl_c()
    with errors_in_one_line():
        reports = examine_all(projects, to, watched("Updating copies", transient=True))
        show_reports(reports, changes=changes, drift=drift)
        if json_file:
            json_file.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    raise typer.Exit(1 if any(report.state in (CONFLICTS, IMPOSSIBLE) for report in reports) else 0)


def migrate(
    project: Annotated[
        Path, typer.Argument(metavar="PATH", help="Folder of a project that `copier update` has updated.")
    ],
) -> None:
    """Move an updated project of version 1 to the modules and imports of version 2, with its owner's edits.

    Exit code 0: all is moved; 1: something is left to do by hand, a line for each; 2: nothing was changed.
    """
    term_as_ctrl_c()
    with errors_in_one_line():
        plan = move_project(project)
    for line in plan.told:
        typer.echo(line)
    for line in plan.left:
        typer.echo(f"left to do: {line}", err=True)
    if not (plan.told or plan.left or plan.deleted):
        typer.echo("nothing to move")
    raise typer.Exit(1 if plan.left else 0)


def show_reports(reports: Sequence[Report], *, changes: bool, drift: bool) -> None:
    """Print a line for each project, and below them what their owners must know."""
    console = Console()
    for report in reports:
        state = Text(report.state, STYLES[report.state])
        files = "1 file" if len(report.drift or []) == 1 else f"{len(report.drift or [])} files"
        drifted = Text(f", drift in {files}" if report.drift else "", "yellow")
        console.print(Text.assemble(plain(f"{report.project}: {report.version}, "), state, drifted), soft_wrap=True)
    for report in reports:
        words = [report.reason, *(f"conflict in {path}" for path in report.conflicts)]
        if drift:
            words += [f"drift: {line}" for line in report.drift or []]
            words += [f"edit: {line}" for line in report.edits or []]
        for line in filter(None, words + (report.changes if changes else [])):
            console.print(Text(plain(f"{report.project}: {line}")), soft_wrap=True)
