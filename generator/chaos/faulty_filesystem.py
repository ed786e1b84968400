"""Serves a folder of this machine through FUSE, as a disk that is sound, full, slow or worse.

python -m generator.chaos.faulty_filesystem FOLDER MOUNT reads a state from each line of its standard input. States are
"sound", "full" (ENOSPC), "failing" (EIO), "read-only" (EROFS), "short" (a write takes half of its bytes) and "slow".
It prints a state once the state has changed a call.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import IO, Any

import mfusepy

SLOW = 0.2  # seconds
TIMES = ("atime", "mtime", "ctime")
FACTS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_dev")


def changing(system_call: Callable[..., None]) -> Callable[..., None]:
    """Return an operation that makes a system call for the same file of the folder, unless the disk is read-only."""

    def operation(self: "FaultyFilesystem", path: str, *arguments: Any) -> None:
        self._changes()
        system_call(self.folder + path, *arguments)

    return operation


class FaultyFilesystem(mfusepy.Operations):  # type: ignore[misc]
    """Passes each call on to the same file of a folder, unless the state of the disk makes it fail."""

    use_ns = True

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.state = "sound"
        self.is_told = False

    def obey(self, orders: IO[str]) -> None:
        """Take states from lines, and end when there are no more: who gave them is gone."""
        for line in orders:
            self.state, self.is_told = line.strip(), False
        os.kill(os.getpid(), signal.SIGTERM)  # whereupon libfuse unmounts it

    def _tell(self, state: str) -> None:
        if not self.is_told:
            self.is_told = True
            print(state, flush=True)

    def _fails(self, state: str, number: int) -> None:
        if self.state == state:
            self._tell(state)
            raise OSError(number, os.strerror(number))

    def _changes(self) -> None:
        self._fails("read-only", errno.EROFS)

    def _stores(self) -> None:
        self._changes()
        self._fails("full", errno.ENOSPC)
        self._fails("failing", errno.EIO)
        if self.state == "slow":
            self._tell("slow")
            time.sleep(SLOW)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        stat = os.lstat(self.folder + path)
        times = {f"st_{name}": getattr(stat, f"st_{name}_ns") for name in TIMES}
        return {name: getattr(stat, name) for name in FACTS} | times

    def statfs(self, path: str) -> dict[str, Any]:
        stat = os.statvfs(self.folder + path)
        return {name: getattr(stat, name) for name in dir(stat) if name.startswith("f_") and name != "f_fsid"}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.folder + path)]

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._changes()  # a new file takes no room of a full disk
        return os.open(self.folder + path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._changes()
        return os.open(self.folder + path, flags & ~os.O_APPEND)  # the kernel says where to write

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._stores()
        if self.state == "short" and len(data) > 1:
            self._tell("short")
            data = data[: len(data) // 2]
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        """Fail or take long, as the state says; the files are only as safe as the tests need them."""
        if self.state != "full":
            self._stores()

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def rename(self, old: str, new: str) -> None:
        self._changes()
        os.replace(self.folder + old, self.folder + new)

    def link(self, target: str, source: str) -> None:
        self._changes()
        os.link(self.folder + source, self.folder + target)

    mkdir = changing(os.mkdir)
    rmdir = changing(os.rmdir)
    unlink = changing(os.unlink)
    chmod = changing(os.chmod)
    truncate = changing(lambda path, length, fh=None: os.truncate(path, length))
    utimens = changing(lambda path, times=None: os.utime(path, ns=times or (time.time_ns(), time.time_ns())))


def serve(folder: str, mount: str) -> None:
    disk = FaultyFilesystem(folder)
    Thread(target=disk.obey, args=(sys.stdin,), daemon=True).start()
    mfusepy.FUSE(disk, mount, foreground=True, fsname="ddp-chaos")


if __name__ == "__main__":
    serve(*sys.argv[1:])
