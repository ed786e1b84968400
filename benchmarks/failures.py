"""What a measurement ends with where it cannot be made."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


class CommandError(Exception):
    """A command that is to be measured fails. The message is what it printed."""


@contextmanager
def failures_told() -> Iterator[None]:
    """Tell a CommandError without a traceback, and end the benchmark with code 1."""
    try:
        yield
    except CommandError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
