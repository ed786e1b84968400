"""Starts programs, also in a terminal, and waits for them: limits in seconds grow on a slow or busy machine."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pyte

SQUARES = 300_000
SPARE = 5  # a time limit is this many times the expected time: only a hang reaches it
REFERENCE = 0.02  # seconds of the work on an idle core of the reference machine, for which limits were chosen

INTERRUPT = b"\x03"  # Ctrl-C, as a terminal gets it

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # with this Python first

Command = Sequence[str | Path]
Env = Mapping[str, str] | None
Found = TypeVar("Found")


def slowness() -> float:
    """Return the longest of three times of a fixed piece of work, divided by its time on the reference machine.

    It is 1 at least.
    """
    times = []
    for _ in range(3):
        started = time.perf_counter()
        sum(number * number for number in range(SQUARES))
        times.append(time.perf_counter() - started)
    return max(1.0, max(times) / REFERENCE)


def scaled(seconds: float) -> float:
    """Return the seconds that work of this length on the reference machine takes here and now."""
    return seconds * slowness()


def hang_timeout(seconds: float) -> float:
    """Return a time limit for work of this length on the reference machine, which only a hang reaches."""
    return SPARE * seconds * slowness_in(int(time.monotonic() // 10))


@lru_cache(maxsize=1)
def slowness_in(_: int) -> float:
    """Measure it once in ten seconds: each time takes the processor from what is waited for."""
    return slowness()


def wait_until(
    condition: Callable[[], Found | None], limit: float = 60, told: Callable[[], object] = str, pause: float = 0.02
) -> Found:
    """Wait until a condition is true, and return its value. Fails some time after the limit, and prints told()."""
    started = time.monotonic()
    while not (found := condition()):
        # Measure the pace only after the limit: before, nothing may delay the next look.
        late = time.monotonic() > started + limit and time.monotonic() > started + hang_timeout(limit)
        assert not late, f"after more than {limit} s, it has not come: {told()}"
        time.sleep(pause)
    return found


def wait_for_line(file: Path, text: str, limit: float = 60) -> str:
    """Wait until a line of a file has a text, and return the line. The file need not exist yet."""

    def lines() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    return wait_until(lambda: next((line for line in lines() if text in line), None), limit, lambda: "\n".join(lines()))


def without_bytecode(env: Env) -> Env:
    """Return an environment of a test's own, which leaves no bytecode in the projects that tests share."""
    return None if env is None else {"PYTHONDONTWRITEBYTECODE": "1"} | dict(env)


@contextmanager
def started(command: Command, folder: Path, output: Path, env: Env = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, whose output goes to a file. Kills what is left of it at the end."""
    env = without_bytecode(env)
    with open(output, "wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Session:
    """What a command has written to a terminal, and its exit code; its screen is so wide that no line wraps."""

    shown: str
    code: int
    columns: int = 1000

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[\d;]*m", "", self.shown)  # without colours

    @property
    def screen(self) -> pyte.Screen:
        """The screen at the end, which is high enough for all lines."""
        screen = pyte.Screen(self.columns, 1000)
        pyte.Stream(screen).feed(self.shown)
        return screen

    @property
    def lines(self) -> list[str]:
        """The lines of the screen."""
        lines = [line.rstrip() for line in self.screen.display]
        return "\n".join(lines).replace("^C", "").strip("\n").split("\n")  # a terminal echoes ^C


def run_in_terminal(
    command: Command, folder: Path, env: Env, *, interrupt: float | str | None = None, columns: int = 100
) -> Session:
    """Run a command, and type Ctrl-C after so many seconds or when a text is shown. Fails if it does not end."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(folder)
        os.execvpe(command[0], [*map(str, command)], dict(env or os.environ))
    shown, started = b"", time.monotonic()
    while True:
        late = time.monotonic() - started
        if late > scaled(60):
            os.killpg(child, signal.SIGKILL)
        now = late > interrupt if isinstance(interrupt, float) else (interrupt or "\0").encode() in shown
        if interrupt is not None and now:
            os.write(terminal, INTERRUPT)
            interrupt = None
        if select.select([terminal], [], [], 0.01)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # no process has the terminal any more
                break
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != -signal.SIGKILL, f"it has not ended:\n{shown.decode(errors='replace')}"
    return Session(shown.decode(errors="replace"), code)


def output_of(command: Command, folder: Path, env: Env = None, *, code: int | None = 0, timeout: float = 300) -> str:
    """Run a command and return all that it printed. Fails where it ends with another exit code (None: any will do)."""
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = without_bytecode(env)
    done = subprocess.run(command, cwd=folder, env=env, timeout=hang_timeout(timeout), **both)
    assert code is None or done.returncode == code, f"exit code {done.returncode}:\n{done.stdout}"
    return str(done.stdout)


def write_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
