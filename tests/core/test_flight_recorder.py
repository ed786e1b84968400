"""torch's flight recorder is on in every version that has one, unless the user has set how much it keeps."""

import os
from unittest.mock import patch

import pytest
import torch

from tests.conftest import Package

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


@pytest.mark.parametrize(
    ("version", "backend", "user", "expected"),
    [
        ("2.13.0", "nccl", {}, {}),  # which records by itself, and warns of the older name
        ("2.11.0", "gloo", {}, {}),
        ("2.10.0", "gloo", {}, {SIZES[0]: "2000"}),
        ("2.8.0", "nccl", {}, {SIZES[1]: "2000"}),  # whose watchdog knows no other name
        ("2.8.0", "nccl", {SIZES[0]: "0"}, {SIZES[0]: "0"}),
        ("2.8.0", "gloo", {SIZES[1]: "9"}, {SIZES[1]: "9"}),
    ],
)
def test_it_is_turned_on_where_torch_does_not(
    version: str, backend: str, user: dict[str, str], expected: dict[str, str], package: Package
) -> None:
    process_group, told = package("runtime.process_group"), torch.torch_version.TorchVersion(version)
    with patch.dict(os.environ), patch.object(torch, "__version__", told):
        for name in SIZES:
            os.environ.pop(name, None)
        os.environ.update(user)
        process_group.remember_collectives(backend)
        assert {name: os.environ[name] for name in SIZES if name in os.environ} == expected
