"""The functions of task.py that a run calls: those that it needs, and those that task.py may leave out."""

from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

from .. import task
from .exits import UserError

ALWAYS = ("compute", "build_optimizer", "lr_at")
OPTIONAL = ("summarize", "predict", "read_inputs", "show", "rename")
ALIKE = 0.85  # of 1: the share of letters that a misspelt name has in common with the right one


def optional(name: str) -> Callable[..., Any] | None:
    """Return a function that task.py may have, or None."""
    assert name in OPTIONAL
    found: Callable[..., Any] | None = getattr(task, name, None)
    return found


def check_names() -> None:
    """Raise UserError if task.py has a function whose name is nearly one that it lacks."""
    for right in [name for name in (*ALWAYS, *OPTIONAL) if not hasattr(task, name)]:
        for name, value in vars(task).items():
            if callable(value) and not name.startswith(right) and SequenceMatcher(None, name, right).ratio() > ALIKE:
                raise UserError(f"task.py: nothing calls {name}(): if it is meant to be {right}(), rename it")
