"""What makes it run on many processes. Imported first, this refuses a system that lacks what the rest imports."""

import sys
from types import TracebackType

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
