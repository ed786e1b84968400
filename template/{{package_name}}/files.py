"""Files that are there whole or not at all, whenever the program is killed and whatever the disk does."""

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from .exits import UserError

BLOCK = 1 << 20  # bytes: what is read at once, and what is worth a thread


class HashedFile(io.BufferedWriter):
    """A file that computes the SHA-256 of what is written to it, so that nobody has to read it again."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.size = 0  # bytes
        self._sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Write all of it and, where it is large, hash it meanwhile: neither holds on to Python's lock."""
        size = memoryview(data).nbytes
        self.size += size
        if size < BLOCK:
            self._sha256.update(data)
            return super().write(data)
        hashing = Thread(target=self._sha256.update, args=(data,))
        hashing.start()
        try:
            return super().write(data)
        finally:
            hashing.join()

    def sha256(self) -> str:
        """The digest of all that was written, in hexadecimal."""
        return self._sha256.hexdigest()


def sha256_of(path: Path) -> str:
    """The digest of a file's content, in hexadecimal."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            sha256.update(block)
    return sha256.hexdigest()


@contextmanager
def whole_file(path: Path, size: Callable[[], int] | None = None) -> Iterator[HashedFile]:
    """Give a file to write to. It gets its name at the end, when the disk has it: a crash leaves the old one, whole.

    Raises UserError, with nothing left behind, where the disk does not take it; size() tells how many bytes it takes.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with HashedFile(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # it is not there, or the disk is read-only
            temporary.unlink()
        # torch.save hides a full disk behind a RuntimeError.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        needed = f" (it takes {size()} bytes)" if size else ""
        raise UserError(f"{path} could not be written: {reason.strerror}{needed}") from error


def link_atomically(path: Path, name: Path) -> None:
    """Give the file a second name, which until then may belong to another file."""
    temporary = name.with_name(f"{name.name}.tmp")
    try:
        os.link(path, temporary)
        os.replace(temporary, name)
    except OSError:  # some file systems have no hard links
        with open(path, "rb") as source, whole_file(name, size=lambda: path.stat().st_size) as copy:
            shutil.copyfileobj(source, copy, BLOCK)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot
        os.fsync(descriptor)
    os.close(descriptor)
