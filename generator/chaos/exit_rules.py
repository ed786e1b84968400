"""How a start may end: with a code that its faults lead to, and the line that names the cause."""

import re
from collections.abc import Collection, Sequence

from generator.chaos.faults import BY_ITSELF, FAILED, FAULTS, VICTIM
from generator.chaos.schedule import Fault

# Threads of PyTorch's loader, which passes tensors on, and of TensorBoard print a traceback of their own when they end.
THREADS = ("resource_sharer", "event_file_writer")
TRACEBACK = "Traceback (most"
# If a rank lives and does not come, the program may be wrong: another rank shows where it has waited.
ON_PURPOSE = f"a collective has failed\n{TRACEBACK}"
STACK = ("frame #", "Exception raised from", "<omitting")  # of PyTorch's C++, which a lost store makes print much
SHOWN = 100  # lines of what a run has printed


def shown(happened: Sequence[Fault], output: str) -> str:
    """Return what has happened, and the last lines of what the run has printed then."""
    names = ", ".join(fault.kind for fault in happened) or "nothing"
    lines = [line for line in output.splitlines() if not line.startswith(STACK)]
    return "\n".join([f"after {names}", *lines[-SHOWN:]])


def unexpected_failure(
    happened: Sequence[Fault], hit: int | None, code: int, output: str, hides: Collection[int]
) -> str:
    """Return in what an end that is a failure is none that these faults lead to; nothing if it is right.

    If the only fault has hit a rank, its number must be said. Codes that a launcher hides others by may mean any end.
    """
    exits = [FAULTS[fault.kind].exits for fault in happened]
    if not any(code in each for each in [*exits, hides]):
        return f"exit code {code}"
    causes = [each[code] for each in exits if code in each]
    if code in hides:
        causes += [cause for each in exits for cause in each.values()]
    if len(happened) == 1 and hit is not None:
        causes = [cause.replace(VICTIM, str(hit)) for cause in causes]
    if not any(re.search(cause, output, re.DOTALL) for cause in causes):
        return f"exit code {code}, and no line that has the cause,"
    hidden = code in hides and any(FAILED in each for each in exits)
    by_itself = code in BY_ITSELF and not hidden
    tracebacks = output.count(TRACEBACK) - output.count(ON_PURPOSE)
    if by_itself and tracebacks and not any(thread in output for thread in THREADS):
        return "a traceback"
    return ""
