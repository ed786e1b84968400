"""What makes two runs the same: seeds, the states of the random number generators, deterministic algorithms."""

import os
import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed Python, NumPy and torch, on the CPU and on this rank's GPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states() -> dict[str, Any]:
    """The states of all generators of this rank, as plain types."""
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "python": random.getstate(),
        "numpy": numpy_state,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_generator_states(states: dict[str, Any]) -> None:
    """Put back what generator_states() gave."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def use_deterministic_algorithms(only: bool) -> None:
    """Choose between algorithms that repeat bit for bit and, on GPUs, the fastest ones."""
    if only:
        # cuBLAS cannot be deterministic without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(only)
    torch.backends.cudnn.benchmark = not only
