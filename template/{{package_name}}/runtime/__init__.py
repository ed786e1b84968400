"""What makes the program run on many ranks. Your files import from here alone; what is behind it may move.

Imported first, this refuses a system that lacks what the rest imports. A name is imported when it is used: options.py
is read before torch.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cli import NonNegativeFloat as NonNegativeFloat
    from .cli import NonNegativeInt as NonNegativeInt
    from .cli import NonNegativeIntOrAuto as NonNegativeIntOrAuto
    from .cli import OptionalPath as OptionalPath
    from .cli import PositiveInt as PositiveInt
    from .cli import Seconds as Seconds
    from .cli import UnitFloat as UnitFloat
    from .collectives import gather_with_grad as gather_with_grad
    from .collectives import reduce_tensor as reduce_tensor
    from .exits import UserError as UserError
    from .export import load_model as load_model
    from .metrics import AllSamples as AllSamples
    from .metrics import Mean as Mean
    from .metrics import current_step as current_step
    from .optimizer_step import Optimizers as Optimizers
    from .orders import Mixture as Mixture
    from .orders import by_length as by_length
    from .orders import tokens_per_batch as tokens_per_batch
    from .orders import weighted as weighted
    from .sampling import Data as Data
    from .sampling import Stream as Stream
else:

    def __getattr__(name):
        """Import what is behind a name."""
        for module, names in NAMES.items():
            if name in names.split():
                return getattr(import_module(f".{module}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


NAMES = {
    "collectives": "gather_with_grad reduce_tensor",
    "cli": "NonNegativeFloat NonNegativeInt NonNegativeIntOrAuto OptionalPath PositiveInt Seconds UnitFloat",
    "exits": "UserError",
    "export": "load_model",
    "metrics": "AllSamples Mean current_step",
    "optimizer_step": "Optimizers",
    "orders": "Mixture by_length tokens_per_batch weighted",
    "sampling": "Data Stream",
}

if sys.platform == "win32":
    print("error: this project needs Linux or macOS: use WSL", file=sys.stderr)
    sys.exit(2)
# An update leaves files that have another name since version 2.
if any(Path(__file__).with_name(f"{old}.py").exists() for old in ("heartbeat", "meter", "process_group")):
    print("error: modules of version 1 are left: `ddp-template migrate .` moves them (UPDATING.md)", file=sys.stderr)
    sys.exit(2)


def show_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Show the traceback of an error that nobody has caught; Ctrl-C is none, also if an import has made it another."""
    cause: BaseException | None = error
    while cause and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return sys.__excepthook__(kind, error, traceback)
    print("interrupted", file=sys.stderr)
    if cause is not error:  # of Ctrl-C itself, Python makes the exit code
        sys.exit(130)


sys.excepthook = show_error
