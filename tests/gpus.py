"""Pretends that there are GPUs, to see what a project makes of what their driver says."""

from pathlib import Path
from types import SimpleNamespace

import torch


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
