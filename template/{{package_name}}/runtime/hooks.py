"""The functions of task.py that a run calls: those that it must have, and those that it may have."""

from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

from .. import task
from .exits import UserError

REQUIRED = ("compute", "build_optimizer", "lr_at")
OPTIONAL = ("summarize", "predict")
ALIKE = 0.85  # of 1: the share of letters that a misspelt name has in common with the right one


def optional(name: str) -> Callable[..., Any] | None:
    """Return a function that task.py may have, or None."""
    assert name in OPTIONAL
    found: Callable[..., Any] | None = getattr(task, name, None)
    return found


def check_names() -> None:
    """Raise UserError if task.py lacks a function, or has one whose name is nearly that of a missing one."""
    for right in [name for name in (*REQUIRED, *OPTIONAL) if not hasattr(task, name)]:
        for name, value in vars(task).items():
            if callable(value) and not name.startswith(right) and SequenceMatcher(None, name, right).ratio() > ALIKE:
                raise UserError(f"task.py: nothing calls {name}(): if it is meant to be {right}(), rename it")
        if right in REQUIRED:
            raise UserError(f"task.py: there is no {right}(): README.md says what each function does")
