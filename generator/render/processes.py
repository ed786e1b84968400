"""How processes end with the one that started them, and leave Ctrl-C to it."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as its parent has ended, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of Linux's <sys/prctl.h>


@contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Start processes that do not answer Ctrl-C, not even before they are ready: their parent does, for all of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
