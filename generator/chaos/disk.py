"""A disk that fails when it is told to. The files themselves are in a folder where no state of it reaches them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STATES = {
    "sound": "as a disk should be",
    "full": "every write fails with ENOSPC",
    "failing": "every write and fsync fails with EIO",
    "read-only": "nothing can be made, written, renamed or removed: EROFS",
    "short": "a write takes half of what it is given",
    "slow": "every write and fsync takes a fifth of a second",
}


class Disk:
    """What tells the disk how to be."""

    def __init__(self, folder: Path, mount: Path, orders: IO[str], changes: Path) -> None:
        """Take the folder with the files, the one where programs see them, and what tells which calls were changed."""
        self.folder = folder
        self.mount = mount
        self.orders = orders
        self.changes = changes
        self.known = 0

    def set_state(self, state: str) -> None:
        """Be so from now on."""
        assert state in STATES
        self.orders.write(f"{state}\n")
        self.orders.flush()

    def states_met(self) -> set[str]:
        """Return the states that have changed a call since this was asked last."""
        told = self.changes.read_text().splitlines()
        new, self.known = told[self.known :], len(told)
        return {*new}


def reason_in(log: Path) -> str:
    """Return the first line of a file that is no part of a traceback but its end, if it has one."""
    lines = [line for line in log.read_text().splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    return [*lines, "it says nothing"][0]


@contextmanager
def failing_disk(place: Path) -> Iterator[Disk]:
    """Yield a disk in a new folder. Raises OSError, which says why, if FUSE is not to be had."""
    folder, mount = place / "files", place / "disk"
    for each in (folder, mount):
        each.mkdir(parents=True)
    changes = place / "disk.changes"
    with open(place / "disk.log", "w") as log, open(changes, "w") as told:
        command = [sys.executable, "-m", "generator.chaos.faulty_filesystem", str(folder), str(mount)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=told, stderr=log, text=True)
    assert server.stdin
    try:
        while not mount.is_mount():
            if server.poll() is not None:
                raise OSError(f"FUSE does not serve a disk: {reason_in(place / 'disk.log')}")
            time.sleep(0.01)
        yield Disk(folder, mount, server.stdin, changes)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], capture_output=True)
        server.kill()
        server.communicate()
