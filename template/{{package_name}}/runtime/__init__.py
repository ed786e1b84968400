"""What makes the program run on many ranks. Your files import from here alone; what is behind it may move.

Imported first, this refuses a system that lacks what the rest imports. A name is imported when it is used: options.py
is read before torch.
"""

import sys
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .collectives import reduce_tensor
    from .command_line import (
        NonNegativeFloat,
        NonNegativeInt,
        NonNegativeIntOrAuto,
        OptionalPath,
        PositiveInt,
        Seconds,
        UnitFloat,
    )
    from .exits import UserError
    from .meter import Mean
    from .update import Optimizers
else:

    def __getattr__(name):
        """Import what is behind a name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = MODULES.get(name, "command_line")  # most are types of options
        return getattr(import_module(f".{module}", __name__), name)


MODULES = {"Mean": "meter", "Optimizers": "update", "UserError": "exits", "reduce_tensor": "collectives"}
__all__ = [
    "Mean",
    "NonNegativeFloat",
    "NonNegativeInt",
    "NonNegativeIntOrAuto",
    "Optimizers",
    "OptionalPath",
    "PositiveInt",
    "Seconds",
    "UnitFloat",
    "UserError",
    "reduce_tensor",
]

if sys.platform == "win32":
    print("error: this project needs Linux or macOS: use WSL", file=sys.stderr)
    sys.exit(2)


def show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Show the traceback of an error that nobody has caught; Ctrl-C is none."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = show_error
