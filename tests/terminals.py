"""Runs a command in a terminal of its own, and types Ctrl-C there: all of its processes in the foreground get it."""

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .pace import seconds

INTERRUPT = b"\x03"


@dataclass
class Session:
    """What was shown in a terminal, and how its command ended."""

    shown: str
    code: int

    @property
    def plain(self) -> str:
        """What was shown, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.shown)

    @property
    def lines(self) -> list[str]:
        """What was shown, without the ^C that a terminal echoes."""
        return self.shown.replace("^C", "").replace("\r", "").strip().split("\n")


def run_in_terminal(
    command: Sequence[str | Path],
    folder: Path,
    env: Mapping[str, str],
    *,
    interrupt: float | str | None = None,
    limit: float = 60,
) -> Session:
    """Run a command, and type Ctrl-C after so many seconds or when a text is shown. Fails if it does not end."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(folder)
        os.execvpe(command[0], [*map(str, command)], dict(env))
    shown, started = b"", time.monotonic()
    while True:
        late = time.monotonic() - started
        if late > seconds(limit):
            os.killpg(child, signal.SIGKILL)
        if interrupt is not None and (
            late > interrupt if isinstance(interrupt, float) else interrupt.encode() in shown
        ):
            os.write(terminal, INTERRUPT)
            interrupt = None
        if select.select([terminal], [], [], 0.01)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # all that had the terminal are gone
                break
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != -signal.SIGKILL, f"it has not ended:\n{shown.decode(errors='replace')}"
    return Session(shown.decode(errors="replace"), code)
