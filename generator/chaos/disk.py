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

    def __init__(self, folder: Path, mount: Path, orders: IO[str]) -> None:
        """Take the folder with the files, and the one where programs see them."""
        self.folder = folder
        self.mount = mount
        self.orders = orders

    def be(self, state: str) -> None:
        """Be so from now on."""
        assert state in STATES
        self.orders.write(f"{state}\n")
        self.orders.flush()


def last_line(log: Path) -> str:
    """Return the last line of a file."""
    return (log.read_text().strip().splitlines() or ["it says nothing"])[-1]


@contextmanager
def failing_disk(place: Path) -> Iterator[Disk]:
    """Yield a disk in a new folder. Raises OSError, which says why, if FUSE is not to be had."""
    folder, mount = place / "files", place / "disk"
    for each in (folder, mount):
        each.mkdir(parents=True)
    with open(place / "disk.log", "w") as log:
        command = [sys.executable, "-m", "generator.chaos.fuse", str(folder), str(mount)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
    assert server.stdin
    try:
        while not mount.is_mount():
            if server.poll() is not None:
                raise OSError(f"FUSE does not serve a disk: {last_line(place / 'disk.log')}")
            time.sleep(0.01)
        yield Disk(folder, mount, server.stdin)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], capture_output=True)
        server.kill()
        server.communicate()
