"""What makes two runs the same: seeds, the states of the random number generators, deterministic algorithms."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def same_numbers(seed: int, rank: int) -> Iterator[None]:
    """Inside, all ranks draw the same random numbers, so that they build the same weights; afterwards each its own."""
    seed_generators(seed)
    yield
    seed_generators(seed + rank)


def seed_generators(seed: int) -> None:
    """Seed Python, NumPy and torch, on the CPU and on this rank's GPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of all generators that a rank on this device uses, of the same shapes on every rank."""
    _, words, gauss = random.getstate()
    _, key, *rest = np.random.get_state()
    states = {  # float64 holds the words of Python and NumPy exactly: they have 32 bits
        "python": torch.tensor([*words, gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*key, *rest], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_generator_states(states: dict[str, Any]) -> None:
    """Go on with what generator_states() has returned."""
    *words, has_gauss, gauss = states["python"].tolist()
    random.setstate((random.Random.VERSION, tuple(map(int, words)), gauss if has_gauss else None))
    *key, position, has_gauss, gauss = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(key, np.uint32), int(position), int(has_gauss), gauss))
    torch.set_rng_state(states["torch"])
    if states.get("cuda") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def use_deterministic_algorithms(only: bool) -> None:
    """Choose between algorithms that repeat bit for bit and, on GPUs, the fastest ones."""
    if only:
        # cuBLAS cannot be deterministic without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(only)
    torch.backends.cudnn.benchmark = not only
