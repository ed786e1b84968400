"""Where many small files are written that are gone soon."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MEMORY = Path("/dev/shm")


def scratch_root(room: int) -> Path:
    """Give a file system in memory that has room for so many bytes, else the usual folder for temporary files.

    On disk, ext4 takes ever longer to create files where many were deleted within the last minutes: twice the time of
    a whole check. TMPDIR, where it is set, decides.
    """
    if "TMPDIR" in os.environ or not os.access(IN_MEMORY, os.W_OK) or shutil.disk_usage(IN_MEMORY).free < room:
        return Path(tempfile.gettempdir())
    return IN_MEMORY


@contextmanager
def scratch_folder(room: int) -> Iterator[Path]:
    """Give a new folder with room for so many bytes, which is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="ddp-template-", dir=scratch_root(room)) as folder:
        yield Path(folder)
