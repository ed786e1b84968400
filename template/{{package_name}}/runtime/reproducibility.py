"""What makes two runs the same: code, seeds, states of the random number generators, deterministic algorithms."""

import hashlib
import inspect
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def code_digests() -> dict[str, str]:
    """Return short digests of the project's Python files, by their paths in the package, and of train.py."""
    package = Path(__file__).parent.parent
    files = {str(file.relative_to(package)): file for file in sorted(package.rglob("*.py"))}
    files["train.py"] = package.with_name("train.py")
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for name, file in files.items() if file.exists()}


@cache
def provenance() -> dict[str, Any]:
    """Return the commit of the project, "-dirty" if files differ from it, and the digests of its code at the start."""
    command, commit = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], "unknown"
    with suppress(OSError, subprocess.SubprocessError):  # without git
        folder = Path(__file__).parent
        commit = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=10).stdout
    return {"commit": commit.strip(), "files": code_digests()}


@contextmanager
def same_numbers(seed: int, rank: int) -> Iterator[None]:
    """Inside, all ranks draw the same random numbers, so that they build the same weights; afterwards each its own."""
    seed_generators(seed)
    yield
    seed_generators(seed + rank)


def build(build_model: Callable[..., nn.Module], config: Any) -> nn.Module:
    """Return a new model. build_model() takes the options, if there is something that it must be given."""
    taken = inspect.signature(build_model).parameters.values()
    return build_model(config) if any(each.default is each.empty for each in taken) else build_model()


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
