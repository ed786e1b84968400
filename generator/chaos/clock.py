"""The clock of a run, which can jump: a library that is preloaded into all of its processes shifts the time of day."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
HOUR = 3600  # seconds


@dataclass(frozen=True)
class Clock:
    """A clock, and where it is read from."""

    library: Path
    file: Path

    def jump(self, seconds: int) -> None:
        """Be so far from the time of this machine from now on."""
        self.file.write_text(f"{seconds:+d}")

    @property
    def variables(self) -> dict[str, str]:
        """What lets a program read this clock."""
        return {"LD_PRELOAD": str(self.library), "DDP_CLOCK": str(self.file)}


def build_clock(folder: Path) -> Clock:
    """Build the library in a folder. Raises OSError, which says why, if that is not possible."""
    clock = Clock(folder / "clock.so", folder / "clock")
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler (cc)")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(clock.library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"cc fails: {(done.stderr.strip().splitlines() or ['it says nothing'])[0]}")
    clock.jump(HOUR)
    told = told_time(clock)
    if not told or abs(float(told) - time.time() - HOUR) > HOUR / 2:
        raise OSError(f"what cc builds in {folder} moves no clock, as on a disk that is mounted with noexec")
    clock.jump(0)
    return clock


def told_time(clock: Clock) -> str:
    """Return the time that Python tells with a clock; nothing if it does not start."""
    command = [sys.executable, "-c", "import time; print(time.time())"]
    return subprocess.run(command, env={**os.environ, **clock.variables}, capture_output=True, text=True).stdout
