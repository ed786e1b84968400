"""The ddp-template command."""

import subprocess
import sys

import typer

from generator.answers.questions import TEMPLATE
from generator.cli.check import check
from generator.cli.diff import diff
from generator.cli.matrix import matrix
from generator.cli.new import new
from generator.cli.render import render as render_command
from generator.cli.updates import fleet, release_check, update_check

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Try out and test the DDP template from a clone of it."""


@app.command()
def docs() -> None:
    """Bring the made parts of README.md and docs/ up to date: tables, and the example."""
    raise typer.Exit(subprocess.run([sys.executable, "-m", "tools.docs"], cwd=TEMPLATE).returncode)


app.command()(new)
app.command()(check)
app.command()(diff)
app.command("matrix")(matrix)
app.command("render")(render_command)
app.command()(fleet)
app.command("update-check")(update_check)
app.command("release-check")(release_check)


def main() -> None:
    """Run the command."""
    app()
