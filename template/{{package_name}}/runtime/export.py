"""What comes after training: weights for other programs, and the model back from them."""

import json
import math
import platform
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import Config
from ..model import build_model
from .checkpoint import newest_run
from .cli import ABOUT, EXPORT, RUNS, parse_words, words_from
from .exits import UserError
from .remote import here
from .storage import atomic_write
from .weights import fill, read_safetensors, read_whole, verify, weights_of, write_safetensors

WEIGHTS = "model.safetensors"


def export(source: Path | None = None, folder: Path | None = None) -> Path:
    """Write the weights of a checkpoint, or of the best one of a run, of the newest run by default.

    Returns the folder, by default in the run directory. Raises UserError if there is no checkpoint that is whole.
    """
    path = here(source) if source else newest_run()
    if path is None:
        raise UserError(f"there is no run in {RUNS.absolute()}: name a run directory or a checkpoint")
    path = path / "checkpoints" / "best.pt" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}: name a run directory, or another checkpoint")
    checkpoint, sha256 = read_whole(path)
    run_dir = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    folder = folder or run_dir / EXPORT
    folder.mkdir(parents=True, exist_ok=True)
    weights, kind = weights_of(checkpoint)
    about = {"weights": kind, **description(checkpoint), "checkpoint": str(path), "checkpoint_sha256": sha256}
    about["sha256"] = write_safetensors(weights, folder / WEIGHTS)
    with atomic_write(folder / ABOUT) as file:
        file.write((json.dumps(about, indent=2) + "\n").encode())
    return folder


def description(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of its run, and the versions that read it, as JSON takes them."""
    progress = checkpoint["progress"]
    grown = {name: checkpoint[name] for name in ("grown_buffers",) if name in checkpoint}
    best = {name: value if math.isfinite(value) else None for name, value in progress.get("best_metrics", {}).items()}
    return {
        "step": progress["step"],
        "epoch": progress["epoch"],
        "best": best,
        "options": checkpoint.get("config", {}),
        "code": checkpoint.get("code", {}),
        **grown,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }


def load_model(folder: Path | str, device: torch.device | str = "cpu", config: Config | None = None) -> nn.Module:
    """Return the model of an export, in evaluation mode; config: options in place of those that it was trained with.

    Raises UserError if it is missing, damaged or does not fit.
    """
    weights, about = Path(folder, WEIGHTS), Path(folder, ABOUT)
    if not (weights.is_file() and about.is_file()):
        raise UserError(f"{folder} does not hold {WEIGHTS} and {ABOUT}: export.py writes them")
    verify(weights)
    said, tensors = json.loads(about.read_text()), read_safetensors(weights)
    model = build_model(config or config_of(said.get("options", {})))
    fill(model, tensors, said.get("grown_buffers", {}), weights)
    return model.to(device).eval()


def config_of(options: dict[str, Any]) -> Config:
    """Return the options that a model was trained with; this version of the program may not know all of them."""
    known = {field.name for field in fields(Config)}
    if unknown := sorted(options.keys() - known):
        print(f"{ABOUT} has options that this program does not: {', '.join(unknown)}", file=sys.stderr)
    return parse_words(Config, words_from({name: options[name] for name in options.keys() & known}, Config), quiet=True)
