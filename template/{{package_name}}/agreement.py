"""What must be the same on all ranks, compared when a run starts: ranks that differ hang, or spoil the result."""

import hashlib
import platform
from collections.abc import Sized
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from .collectives import gather
from .config import Config
from .exits import UserError

FROM_RANK_0 = ("run_dir", "resume")  # options that no other rank uses


def check_agreement(config: Config, **datasets: Sized) -> None:
    """Compare this rank with all others, in one exchange. Raises UserError on every rank where one differs.

    The message names each difference to rank 0, and the first rank that has it.
    """
    first, *others = gather(description(config, datasets))
    found: dict[str, str] = {}
    for rank, other in enumerate(others, start=1):
        for what in first | other:
            if first.get(what) != other.get(what):
                found.setdefault(what, f"{what} is {first.get(what)} on rank 0 and {other.get(what)} on rank {rank}")
    if found:
        raise UserError(f"the ranks must be the same: {'; '.join(found.values())}")


def description(config: Config, datasets: dict[str, Sized]) -> dict[str, str]:
    """What this rank runs with: options, lengths of the data, versions, and the code as short digests."""
    chosen = {name: value for name, value in asdict(config).items() if name not in FROM_RANK_0}
    options = {f"--{name.replace('_', '-')}": value for name, value in chosen.items()}
    lengths = {f"the length of the {name} set": len(dataset) for name, dataset in datasets.items()}
    versions = {"Python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    package = Path(__file__).parent
    files = [package.with_name("train.py"), *package.glob("*.py")]
    code = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files if file.exists()}
    return {what: str(value) for what, value in (options | lengths | versions | code).items()}
