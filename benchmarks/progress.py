"""What a benchmark tells while it runs."""

import typer


def say(what: str) -> None:
    """Tell what is being measured."""
    typer.echo(f"measuring: {what}", err=True)
