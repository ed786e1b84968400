"""A real quota on CPUs: a cgroup of this machine, of version 1 or 2, that holds what joins it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from .pace import wait_until

PERIOD = 100_000  # microseconds


def is_empty(group: Path) -> bool:
    """Return whether no process is in a cgroup."""
    return not (group / "cgroup.procs").read_text()


@contextmanager
def quota(cores: float) -> Iterator[Path | None]:
    """Yield the file that takes the ID of a process, which then shares a quota; None where this machine has none."""
    name = f"ddp-template-{os.getpid()}"
    for top, setting, value in (
        ("cpu", "cpu.cfs_quota_us", f"{cores * PERIOD:.0f}"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", f"{cores * PERIOD:.0f}"),
        (".", "cpu.max", f"{cores * PERIOD:.0f} {PERIOD}"),
    ):
        group = Path("/sys/fs/cgroup", top, name)
        with suppress(OSError):
            if not (group.parent / "cgroup.procs").exists():
                continue
            group.mkdir()
            try:
                (group / setting).write_text(value)
            except OSError:
                group.rmdir()
                continue
            try:
                yield group / "cgroup.procs"
            finally:
                wait_until(partial(is_empty, group))
                group.rmdir()
            return
    yield None
