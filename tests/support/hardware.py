"""Hardware that this machine lacks: a quota on CPUs, a disk that is soon full, GPUs and their driver."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.processes import wait_until

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


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size, such as 2m, at a new folder. Skips the test where it cannot be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is refused here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def see_gpus(*uuids: str) -> None:
    """Let torch say, in this process from now on, that it sees these GPUs."""
    vars(torch.cuda).update(
        is_available=lambda: True,
        device_count=lambda: len(uuids),
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
        set_device=lambda device: None,
        is_tf32_supported=lambda: True,
    )


def nvidia_smi(folder: Path, script: str) -> None:
    """Write a program of this name that does what a script of sh says."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
