"""The command `ddp-template update-check`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..options import errors_in_one_line, take_term_as_ctrl_c
from ..progress import ShownProgress
from ..scratch import scratch_folder
from ..workers import Workers
from .gate import PAIRS, STRENGTH, Gate
from .trial import PARTS, Part

ROOM = 2 * 2**30  # bytes


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
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Update projects of released versions, with edits and without, to the template as it is in this clone.

    Exit code 0: nothing is lost; 1: something is; 2: the command itself is wrong.
    """
    take_term_as_ctrl_c()
    with errors_in_one_line():
        # The folder goes when the workers are gone.
        with scratch_folder(ROOM) as folder, Workers() as workers, ShownProgress(PARTS) as progress:
            strength = None if every else STRENGTH
            gate = Gate(revisions or (), progress=progress, only=only or (), strength=strength, pairs=pairs, seed=seed)
            parts = gate.run(workers, folder)
        show(parts, Console())
        if json_file:
            json_file.write_text(json.dumps([asdict(part) for part in parts], indent=2) + "\n")
    raise typer.Exit(1 if any(part.wrong for part in parts) else 0)


def show(parts: list[Part], console: Console) -> None:
    """Print what was found, and then a line for each part."""
    for part in parts:
        for wrong in part.wrong:
            console.print(Text.assemble((part.name, "red"), " ", wrong), soft_wrap=True)
        for note in part.notes:
            console.print(Text.assemble((f"{part.name}, note", "yellow"), " ", note), soft_wrap=True)
    table = Table("part", "question", "cases", "wrong", "seconds", box=None, pad_edge=False)
    for part in parts:
        wrong = f"[red]{len(part.wrong)}[/]" if part.wrong else "0"
        table.add_row(part.name, PARTS[part.name], str(part.cases), wrong, f"{part.seconds:.1f}")
    console.print(table, soft_wrap=True)
