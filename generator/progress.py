"""Shows on stderr how far a command is, so that stdout has only what was asked for."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from rich.console import Console
from rich.progress import track


def watched(what: str) -> Callable[[Iterable[Future[Any]], int], Iterable[Future[Any]]]:
    """Give a function that passes so many futures on as they come, and draws a bar."""
    return lambda futures, total: track(futures, what, total, console=Console(stderr=True))
