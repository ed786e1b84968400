"""Ties a process to the one that started it."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as its parent has ended, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
