"""The command `ddp-template diff`: what an answer changes in a project, or an edit of the template in every project."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from generator.answers.combinations import SelectionError, describe
from generator.answers.questions import TEMPLATE
from generator.cli.options import errors_in_one_line, watched
from generator.diff.versions import compare_answers, compare_versions, read_side, read_version
from generator.render.cache import Cache
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers

COLOURS = r"(?ms)(?P<bold>^diff .*?(?=^@@|^diff |\Z))|(?P<cyan>^@@[^\n]*)|(?P<green>^\+[^\n]*)|(?P<red>^-[^\n]*)"


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
) -> None:
    """Show what answers change in a project, or what your edits of the template change in every project.

    With one argument, it compares the project of these answers with the project of the defaults. With two, it compares
    both projects. It prints a patch for git apply. Without arguments, it compares the template in this clone with HEAD.
    """
    with errors_in_one_line():
        if since is None and sides:
            show_sides(sides, stat=stat)
        else:
            show_since("HEAD" if since is None else since, sides or [], stat=stat)


def show_sides(sides: Sequence[str], *, stat: bool) -> None:
    if len(sides) > 2:
        example = f'"{sides[0]} {sides[1]}"'
        raise SelectionError(f"these are {len(sides)} projects: several answers of one are one argument, {example}")
    old, new = [read_side(side) for side in ("", *sides)[-2:]]
    show = show_counts if stat else show_diff
    show(compare_answers(old, new))


def show_since(revision: str, wanted: Sequence[str], *, stat: bool, template: Path = TEMPLATE) -> None:
    """Compare every chosen combination with the same one of a revision."""
    with tempfile.TemporaryDirectory() as place, Workers() as workers:
        old_folder = snapshot_of_revision(Path(place) / "old", revision, template)
        new_folder = take_snapshot(Path(place) / "new", template)
        with Console(stderr=True).status("Asking Copier what is legal"):
            old, new = (read_version(folder, workers, Cache()) for folder in (old_folder, new_folder))
        found = compare_versions(old, new, wanted, workers, watched("Rendering", transient=True))
    total = len(found.compared)
    chosen = f" with {' '.join(wanted)}" if wanted else ""
    say(f"since {revision}: {len(found.changed)} of {total} combinations{chosen} change", "bold")
    for note in found.notes:
        say(note, {"+": "green", "-": "red"}.get(note[0], "yellow"))
    for group in found.groups:
        words = describe(group.combinations, found.compared, new.questions)
        count = f"in {len(group.combinations)} of {total} projects: {words}" if words else f"in all {total} projects"
        say(f"\n{count}", "bold magenta")
        show = show_counts if stat else show_diff
        show(group.diff)


def show_counts(diff: str) -> None:
    """Print how many lines of a diff came and went in each file, with git's words on the file as a whole."""
    rows = []
    for path, section in re.findall(r"^diff --git .* b/(.*)\n((?:(?!diff --git ).*\n)*)", diff, flags=re.MULTILINE):
        header, _, hunks = section.partition("\n@@")
        words = ", ".join(re.findall(r"^(?:old|new|deleted|rename from) .*", header, flags=re.MULTILINE))
        came, went = (str(len(re.findall(rf"(?m)^\{sign}", hunks))) for sign in "+-")
        is_binary = re.search("^Binary files ", header, flags=re.MULTILINE)
        green, red = ("bin", "") if is_binary else (f"+{came}", f"-{went}")
        rows.append((green, red, f"{path} ({words})" if words else path))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for green, red, path in rows:
        say(Text.assemble((green.rjust(widths[0]), "green"), (f" {red.rjust(widths[1])}", "red"), f"  {path}"))


def show_diff(diff: str) -> None:
    """Print a diff: in colour in a terminal, and else byte by byte as it is."""
    content = diff.encode(errors="surrogateescape")
    if not Console().is_terminal:
        typer.echo(content, nl=False)
    elif diff:
        text = Text(content.decode(errors="replace").removesuffix("\n"))
        text.highlight_regex(COLOURS)
        say(text)


def say(line: str | Text, style: str = "") -> None:
    Console(highlight=False).print(Text.assemble(line, style=style), soft_wrap=True)
