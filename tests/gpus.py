"""Pretends that there are GPUs, to see what a project makes of what their driver says."""

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
