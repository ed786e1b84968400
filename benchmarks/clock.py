"""Times a command."""

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
