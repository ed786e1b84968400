"""Hardware that this machine lacks: a quota on CPUs, a disk that is soon full, GPUs and their driver."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from generator.chaos.surroundings import cpu_quota


@contextmanager
def quota(cores: float) -> Iterator[Path | None]:
    """Yield the file that takes the ID of a process, which then shares a quota; None where this machine has none."""
    with ExitStack() as stack:
        try:
            group = stack.enter_context(cpu_quota())
            group.limit(cores)
        except OSError:
            yield None
        else:
            yield group.folder / "cgroup.procs"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size, such as 2m, at a new folder. Skips the test where it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is refused here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def see_gpus(*uuids: str, kind: str = "cuda") -> None:
    """Let torch say, in this process from now on, that it sees these GPUs."""
    vars(torch.accelerator).update(
        current_accelerator=lambda check_available=False: torch.device(kind),
        device_count=lambda: len(uuids),
        set_device_index=lambda index: None,
    )
    vars(torch.get_device_module(kind)).update(
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
        is_bf16_supported=lambda including_emulation: True,
    )
