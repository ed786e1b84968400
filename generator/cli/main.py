"""Try out and test the DDP template from a clone of it."""

import subprocess
import sys

import typer

from generator.answers.questions import TEMPLATE
from generator.cli.chaos import chaos
from generator.cli.check import check
from generator.cli.diff import diff
from generator.cli.matrix import matrix
from generator.cli.render import new, render
from generator.cli.updates import fleet, migrate, release_check, update_check


def docs() -> None:
    """Renew the generated parts of README.md and docs/: tables, and the example."""
    raise typer.Exit(subprocess.run([sys.executable, "-m", "tools.docs"], cwd=TEMPLATE).returncode)


app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (docs, new, check, chaos, diff, matrix, render, fleet, migrate, update_check, release_check):
    app.command()(command)


def main() -> None:
    app()
