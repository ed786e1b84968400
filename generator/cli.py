"""The ddp-template command."""

from pathlib import Path
from typing import Annotated

import typer

from .check_command import check
from .diff_command import diff
from .documentation import write_documentation
from .matrix import matrix
from .options import errors_in_one_line
from .projects import render as render_command
from .rendering import RenderError, render
from .updates.fleet_command import fleet
from .updates.origin import record_origin
from .updates.release_check_command import release_check
from .updates.update_check_command import update_check

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Try out and test the DDP template from a clone of it."""


@app.command()
def new(
    destination: Annotated[Path, typer.Argument(help="Folder of the project; it must be new or empty.")],
    answer: Annotated[
        list[str], typer.Option("--answer", "-a", metavar="KEY=VALUE", help="An answer; may be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Write a project from the template as it is in this clone, and say what to do next."""
    with errors_in_one_line():
        render(destination, parse_answers(answer), defaults={}, quiet=False)
        if warning := record_origin(destination):
            typer.echo(f"warning: {warning}", err=True)


@app.command()
def docs() -> None:
    """Bring the made parts of README.md and docs/ up to date: tables, and the example."""
    for path in write_documentation():
        typer.echo(f"updated {path}")


app.command()(check)
app.command()(diff)
app.command("matrix")(matrix)
app.command("render")(render_command)
app.command()(fleet)
app.command("update-check")(update_check)
app.command("release-check")(release_check)


def parse_answers(pairs: list[str]) -> dict[str, str]:
    """Split KEY=VALUE pairs. Raises RenderError where one has no "=" or a key comes twice."""
    answers: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RenderError(f"--answer {pair} is no KEY=VALUE, such as launcher=slurm")
        if key in answers:
            raise RenderError(f"--answer {key} is given twice")
        answers[key] = value
    return answers


def main() -> None:
    """Run the command."""
    app()
