"""Files that are there whole or not at all, and the manifest that tells which checkpoints are whole."""

import fcntl
import hashlib
import io
import json
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
        """Write all of it and, if it is large, hash it meanwhile: neither holds on to Python's lock."""
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
        """Return the digest of all that was written, in hexadecimal."""
        return self._sha256.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the digest of a file's content, in hexadecimal."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            sha256.update(block)
    return sha256.hexdigest()


def sha256_of_json(value: Any) -> str:
    """Return the digest of plain values in hexadecimal; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@contextmanager
def atomic_write(path: Path, size: Callable[[], int] | None = None, *, sync: bool = True) -> Iterator[HashedFile]:
    """Yield a file to write to. It gets its name at the end, when the disk has it: a crash leaves the old one, whole.

    Raises UserError, with nothing left behind, if the disk does not take it; size() returns how many bytes it takes.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link would lead the content elsewhere
        with HashedFile(temporary) as file:
            yield file
            file.flush()
            if sync:  # else it is lost in a power cut, and nobody waits for the disk
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # it is not there, or the disk is read-only
            temporary.unlink()
        # torch.save hides a full disk behind a RuntimeError.
        reason = error if isinstance(error, OSError) else error.__context__
        if isinstance(error, UserError) or not isinstance(reason, OSError):
            raise
        needed = f" (it takes {size()} bytes)" if size else ""
        raise UserError(f"{path} could not be written: {reason.strerror}{needed}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that may be lost in a power cut. Raises UserError if the disk does not take it."""
    with atomic_write(path, sync=False) as file:
        file.write(content)


def link_atomically(path: Path, name: Path) -> None:
    """Give the file a second name, which until then may belong to another file."""
    temporary = name.with_name(f"{name.name}.tmp")
    temporary.unlink(missing_ok=True)  # a kill may have left a link to a checkpoint, which a copy would overwrite
    try:
        os.link(path, temporary)
        os.replace(temporary, name)
    except OSError:  # some file systems have no hard links
        with open(path, "rb") as source, atomic_write(name, size=lambda: path.stat().st_size) as copy:
            shutil.copyfileobj(source, copy, BLOCK)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot
        os.fsync(descriptor)
    os.close(descriptor)


def lock(file: int) -> bool:
    """Lock an open file until it is closed, if its file system has locks. Returns False if somebody else has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


class Manifest:
    """What is known of the checkpoints of a folder, by the SHA-256 of their bytes, in the order of saving.

    A checkpoint is entered before it gets its name, and what it replaces stays in until the next one is entered: so
    every file that is there is known, whenever the program is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "manifest.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the entries by their digests; none if there is no manifest. Raises UserError if it is damaged."""
        try:
            known: dict[str, dict[str, Any]] = json.loads(self.path.read_text())
            # What has no file is no entry: this is an error then.
            return {sha256: {"file": entry["file"], **entry} for sha256, entry in known.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path} is damaged: delete it to go on without verifying checkpoints") from error

    def enter(self, sha256: str, entry: dict[str, Any]) -> None:
        """Add a checkpoint that is about to get its name, and forget those that are gone.

        The one before and the best ones stay: last.pt and best.pt outlive the numbered files that they are names of.
        """
        known = self.read() or {sha256_of(file): {"file": file.name} for file in sorted(self.folder.glob("*.pt"))}
        before = [*known][-1:]
        kept = {
            key: one
            for key, one in known.items()
            if key in before or one.get("best") or (self.folder / one["file"]).exists()
        }
        kept.pop(sha256, None)  # to come last
        self.write({**kept, sha256: entry})

    def write(self, known: dict[str, dict[str, Any]]) -> None:
        """Replace all entries."""
        with atomic_write(self.path) as file:
            file.write((json.dumps(known, indent=2) + "\n").encode())

    def problem(self, checkpoint: Path, sha256: str | None = None) -> str | None:
        """Return what is wrong with a file; None if its bytes are known, or if nothing is known of such a file.

        With the digest, the file is not read.
        """
        known = self.read()
        names = {entry["file"] for entry in known.values()} | {"last.pt", "best.pt"}
        if not known or checkpoint.name not in names or (sha256 or sha256_of(checkpoint)) in known:
            return None
        sizes = [entry["size"] for entry in known.values() if entry["file"] == checkpoint.name and "size" in entry]
        size = checkpoint.stat().st_size
        if sizes and size not in sizes:
            return f"{checkpoint} is damaged: it has {size} bytes, and {sizes[-1]} were written"
        return f"{checkpoint} is damaged: its bytes are not those that {self.path.name} describes"

    def numbered(self) -> list[Path]:
        """Return the numbered checkpoints of the folder, in the order of saving."""
        saved = {entry["file"]: place for place, entry in enumerate(self.read().values())}
        files = (file for file in self.folder.glob("step-*.pt") if file.stem[5:].isdecimal())  # else it is the owner's
        return sorted(files, key=lambda file: (saved.get(file.name, -1), file.stat().st_mtime_ns))

    def newest_first(self) -> list[Path]:
        """Return the checkpoints of the folder: last.pt, then the other numbered ones from the newest on."""
        last, numbered = self.folder / "last.pt", self.numbered()[::-1]
        return [last, *(file for file in numbered if not file.samefile(last))] if last.is_file() else numbered
