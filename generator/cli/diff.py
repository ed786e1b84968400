"""The command `ddp-template diff`: what an answer changes in a project, or an edit of the template in every project."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from generator.answers.questions import TEMPLATE
from generator.answers.selection import SelectionError, describe
from generator.cli.options import errors_in_one_line, watched
from generator.diff.answers import compare_answers, read_side
from generator.diff.comparison import compare_versions
from generator.diff.hunks import Edit
from generator.diff.versions import read_version
from generator.render.cache import Cache
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers

Row = tuple[str, str, str]  # lines that came, lines that went, the file


def diff(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ANSWERS|FILTER",
            help='Answers, such as logging=csv or "launcher=slurm amp=torch", beside the defaults. With --since: only '
            "combinations with these answers (launcher=slurm,mpirun takes either), or those of these names.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Compare every combination with that of a git revision of the template."),
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Only count the lines that came and went in each file.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with code 1 where there is a difference.")
    ] = False,
) -> None:
    """Show what answers change in a project, or what your edits of the template change in every project.

    With one argument, it compares the project of these answers with that of the defaults; with two, both projects.
    git apply takes what it prints. Without any, it compares the template as it is in this clone with HEAD.
    """
    with errors_in_one_line():
        if since is None and sides:
            differs = show_sides(sides, stat=stat)
        else:
            differs = show_since("HEAD" if since is None else since, sides or [], stat=stat)
    if exit_code and differs:
        raise typer.Exit(1)


def show_sides(sides: Sequence[str], *, stat: bool, template: Path = TEMPLATE) -> bool:
    """Compare the projects of two sets of answers, and say whether they differ.

    Raises RenderError if answers are unknown or illegal, and SelectionError if there are more than two sets.
    """
    if len(sides) > 2:
        raise SelectionError(
            f'these are {len(sides)} projects: several answers of one are one argument, "{sides[0]} {sides[1]}"'
        )
    old, new = [read_side(side) for side in ("", *sides)[-2:]]
    if stat:
        counted = compare_answers(old, new, "--numstat", "--summary", template=template).split("\n")
        show_rows([(came, went, path) for came, went, path in (line.split("\t") for line in counted if "\t" in line)])
        # git says below, in lines that begin with a space, which files came, went or have another mode.
        show_diff("".join(f"{line}\n" for line in counted if line.startswith(" ")))
        return counted != [""]
    shown = compare_answers(old, new, template=template)
    show_diff(shown)
    return bool(shown)


def show_since(revision: str, wanted: Sequence[str], *, stat: bool, template: Path = TEMPLATE) -> bool:
    """Compare every chosen combination with that of a revision, and say whether anything differs.

    Raises RenderError if a version cannot be rendered, and SelectionError if the choice makes no sense.
    """
    with tempfile.TemporaryDirectory() as place, Workers() as workers:
        old_folder = snapshot_of_revision(Path(place) / "old", revision, template)
        new_folder = take_snapshot(Path(place) / "new", template)
        with Console(stderr=True).status("Asking Copier what is legal"):
            old, new = (read_version(folder, workers, Cache()) for folder in (old_folder, new_folder))
        found = compare_versions(old, new, wanted, workers, watched("Rendering", transient=True))
    console = Console(highlight=False)
    total = len(found.compared)
    chosen = f" with {' '.join(wanted)}" if wanted else ""
    say(console, f"since {revision}: {len(found.changed)} of {total} combinations{chosen} change", "bold")
    for note in found.notes:
        say(console, note, {"+": "green", "-": "red"}.get(note[0], "yellow"))
    for group in found.groups:
        words = describe(group.combinations, found.compared, new.questions)
        count = f"in {len(group.combinations)} of {total} projects: {words}" if words else f"in all {total} projects"
        say(console, f"\n{count}", "bold magenta")
        if stat:
            show_rows(count_lines(group.edits))
        else:
            show_diff(group.diff)
    return bool(found.groups or found.notes)


def count_lines(edits: Sequence[Edit]) -> list[Row]:
    """Count the lines of edits that came and went, by file."""
    rows = []
    for path in dict.fromkeys(edit.path for edit in edits):
        own = [edit for edit in edits if edit.path == path]
        words = "".join(f" ({', '.join(edit.mode.splitlines())})" for edit in own if edit.mode)
        if any(edit.binary for edit in own):
            rows.append(("-", "-", path + words))
        else:
            came, went = sum(len(edit.added) for edit in own), sum(len(edit.removed) for edit in own)
            rows.append((str(came), str(went), path + words))
    return rows


def show_rows(rows: Sequence[Row]) -> None:
    """Print counts of lines, a file in each line; git writes - for what is no text."""
    console = Console(highlight=False)
    columns = [max((len(row[column]) for row in rows), default=0) + 1 for column in (0, 1)]
    for came, went, path in rows:
        line = Text.assemble(
            (f"+{came}".rjust(columns[0]) if came != "-" else "bin".rjust(columns[0]), "green"),
            (" " + (f"-{went}" if went != "-" else "").rjust(columns[1]), "red"),
            f"  {path}",
        )
        console.print(line, soft_wrap=True)


def show_diff(diff: str) -> None:
    """Print a diff: in colour in a terminal, and else byte by byte as it is."""
    console = Console(highlight=False)
    if not console.is_terminal:
        typer.echo(diff.encode(errors="surrogateescape"), nl=False)
        return
    in_header = True
    for line in diff.encode(errors="surrogateescape").decode(errors="replace").split("\n")[:-1]:
        if line.startswith(("diff --git ", "@@ ")):
            in_header = line.startswith("d")
        style = "bold" if in_header else {"@": "cyan", "+": "green", "-": "red"}.get(line[:1], "")
        say(console, line, style)


def say(console: Console, line: str, style: str) -> None:
    """Print a line as it is, however long it is."""
    console.print(Text(line, style=style), soft_wrap=True)
