"""The shared memory of a job, which can be full: a /dev/shm that its processes alone see."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

SHM = "/dev/shm"
OWN_SHM = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs ddp-chaos {SHM} && exec "$0" "$@"')
SLACK = 1 << 20  # bytes, in which processes may have taken some more
CHUNK = bytes(1 << 16)
TRIES = 100  # to make it smaller while processes take more of it


@dataclass
class SharedMemory:
    """What lets jobs have their own, and fills it."""

    before: Sequence[str] = OWN_SHM  # goes before a command that is to have one of its own, which ends with it
    over: Event = field(default_factory=Event)
    threads: list[Thread] = field(default_factory=list)

    def fill(self, pid: int) -> None:
        """Let that of a process be full until release(). Raises ProcessLookupError if it is gone."""
        place = Path(f"/proc/{pid}/root{SHM}")
        try:
            if os.stat(place).st_dev == os.stat(SHM).st_dev:
                raise AssertionError(f"{pid} has no {SHM} of its own")
            descriptor = os.open(place / "ddp-chaos", os.O_WRONLY | os.O_CREAT)
        except FileNotFoundError as error:
            raise ProcessLookupError from error
        make_small(pid)
        take_all(descriptor)
        self.threads.append(Thread(target=self._keep_full, args=(descriptor,), daemon=True))
        self.threads[-1].start()

    def release(self) -> None:
        """Let go what is filled."""
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        self.over.clear()

    def _keep_full(self, descriptor: int) -> None:
        """Take what a batch leaves that was received, or the next one has room."""
        while not self.over.wait(0.001):
            take_all(descriptor)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def make_small(pid: int) -> None:
    """Let a /dev/shm have hardly more room than is taken, so that filling it takes no memory of the machine."""
    for _ in range(TRIES):
        try:
            stat = os.statvfs(f"/proc/{pid}/root{SHM}")
        except FileNotFoundError as error:
            raise ProcessLookupError from error
        size = (stat.f_blocks - stat.f_bfree) * stat.f_frsize + SLACK
        command = ["nsenter", "--target", str(pid), "--mount", "mount", "-o", f"remount,size={size}", SHM]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.001)
    raise ProcessLookupError(pid)


def take_all(descriptor: int) -> None:
    """Write to a file until there is no room."""
    with suppress(OSError):
        while os.write(descriptor, CHUNK):
            pass


def shared_memory() -> SharedMemory:
    """Return what fills shared memory. Raises OSError, which says why, if no job can have its own."""
    try:
        done = subprocess.run([*OWN_SHM, "nsenter", "--version"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise OSError(f"there is no {error.filename}") from error
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["unshare says nothing"])[0])
    return SharedMemory()
