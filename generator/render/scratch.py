"""Folders and processes that end with this process."""

import ctypes
import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
PREFIX = "ddp-template-check-"
KEPT = ".kept"  # in a folder that its work has left on purpose
DAY = 24 * 3600  # seconds


def scratch_root(room: int) -> Path:
    """Return a file system in memory that has room (bytes), where ext4 would be slow, unless TMPDIR decides."""
    if "TMPDIR" in os.environ or not os.access(IN_MEMORY, os.W_OK) or shutil.disk_usage(IN_MEMORY).free < room:
        return Path(tempfile.gettempdir())
    return IN_MEMORY


@contextmanager
def scratch_folder(room: int, *, keep: bool = False) -> Iterator[Path]:
    """Yield a new folder with room (bytes), and delete it at the end; with `keep`, delete it only after an error."""
    forget_killed(IN_MEMORY)
    new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=scratch_root(room)))
    with open_folder(new) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = new.rename(new.with_name(new.name[1:]))  # under this name, it is always locked
        try:
            yield folder
        except BaseException:
            remove(folder)
            raise
        if not keep:
            remove(folder)
        elif folder.exists():
            (folder / KEPT).touch()


def forget_killed(root: Path) -> None:
    """Delete folders of killed commands from memory, and kept folders after a day."""
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError), open_folder(folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (folder / KEPT).exists() or time.time() - folder.stat().st_mtime > DAY:
                shutil.rmtree(folder)


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Delete a folder, even if ending processes still write to it."""
    until = time.monotonic() + 5
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of Linux's <sys/prctl.h>


@contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Block Ctrl-C in processes that start inside, even before they are ready: their parent handles it for all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
