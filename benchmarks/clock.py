"""Times a command."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .failures import CommandError


def seconds_of(command: Sequence[str | Path], folder: Path, env: Mapping[str, str], code: int = 0) -> float:
    """Run a command, and return what it took. Raises CommandError if it ends with another exit code."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    taken = time.perf_counter() - started
    if done.returncode != code:
        raise CommandError(done.stderr)
    return taken


def processor_seconds_of(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> float:
    """Run a command, and return the processor time of it and of all that it starts and waits for.

    What else the machine does hardly changes it. Raises CommandError if the command fails.
    """
    before = os.times()
    seconds_of(command, folder, env)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
