"""The command `ddp-template release-check`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..options import errors_in_one_line, take_term_as_ctrl_c
from ..progress import ShownProgress
from ..questions import TEMPLATE
from ..scratch import scratch_folder
from ..workers import Workers
from .gate import Gate
from .hermetic import run
from .release import check_release, steps_of_release
from .releases import read_releases
from .trial import PARTS, Part
from .update_check_command import ROOM, show


def release_check(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Such as 1.2.0.", show_default=False)],
    script: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the commands to a file as well.")] = None,
) -> None:
    """Say whether the last commit can be released under a version, and which commands do so.

    Exit code 0: it can; 1: an update from a released version would lose something; 2: something else is missing.
    """
    take_term_as_ctrl_c()
    with errors_in_one_line():
        check_release(version)
        parts = try_updates() if read_releases() else []  # there is nothing to update from before the first version
    if parts:
        show(parts, Console())
    if any(part.wrong for part in parts):
        typer.echo(f"error: {version} cannot be released: updates to it lose what is named above", err=True)
        raise typer.Exit(1)
    commands = "".join(f"{step}\n" for step in steps_of_release(version, run(TEMPLATE, "rev-parse", "HEAD")))
    typer.echo(f"\nNothing is lost. These commands release it:\n\n{commands}", nl=False)
    if script:
        with errors_in_one_line():
            script.write_text(commands)


def try_updates() -> list[Part]:
    """Update projects of all released versions, and return what was found."""
    with scratch_folder(ROOM) as folder, Workers() as workers, ShownProgress(PARTS) as progress:
        return Gate(stop_early=True, progress=progress).run(workers, folder)
