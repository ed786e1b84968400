"""What comes after training, on one process: weights for other programs, the model back from them, and its answers."""

import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import task
from ..config import Config
from ..model import build_model
from .checkpoint import RUNS, newest_run
from .cli import parse_words, words_from
from .devices import uses_gpu
from .exits import UserError
from .storage import atomic_write
from .task_functions import optional
from .weights import ABOUT, fill, read_safetensors, read_whole, verify, weights_of, write_safetensors

WEIGHTS = "model.safetensors"
EXPORT = "export"  # a folder of the run directory


def export(source: Path | None = None, folder: Path | None = None) -> Path:
    """Write the weights of a checkpoint, or of the best one of a run, of the newest run by default.

    Returns the folder, by default in the run directory. Raises UserError if there is no checkpoint that is whole.
    """
    path = source or newest_run()
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


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> nn.Module:
    """Return the model of an export, in evaluation mode. Raises UserError if it is missing, damaged or does not fit."""
    weights, about = Path(folder, WEIGHTS), Path(folder, ABOUT)
    if not (weights.is_file() and about.is_file()):
        raise UserError(f"{folder} does not hold {WEIGHTS} and {ABOUT}: export.py writes them")
    verify(weights)
    said, tensors = json.loads(about.read_text()), read_safetensors(weights)
    model = build_model(config_of(said.get("options", {})))
    fill(model, tensors, said.get("grown_buffers", {}), weights)
    return model.to(device).eval()


def config_of(options: dict[str, Any]) -> Config:
    """Return the options that a model was trained with; this version of the program may not know all of them."""
    known = {field.name for field in fields(Config)}
    if unknown := sorted(options.keys() - known):
        print(f"{ABOUT} has options that this program does not: {', '.join(unknown)}", file=sys.stderr)
    return parse_words(Config, words_from({name: options[name] for name in options.keys() & known}, Config), quiet=True)


def predict(paths: Sequence[Path], to: Path | None = None, device: str = "auto") -> None:
    """Write what a model says of files as lines of JSON. The first path may be the folder of an export.

    Raises UserError if there is no model, or if predict() of task.py cannot read a file; then `to` is not written.
    """
    ask = optional("predict")
    if ask is None:
        signature = "def predict(model: nn.Module, file: Path) -> Iterator[dict[str, Any]]"
        raise UserError(f"{task.__file__} lacks {signature}: add it, to yield what the model says of each sample")
    folder, files = (paths[0], paths[1:]) if paths[0].is_dir() else (newest_export(), paths)
    if not files:
        raise UserError(f"name files behind {folder}, to be read by predict() of {task.__file__}")
    model = load_model(folder, "cuda" if uses_gpu(device) else "cpu")
    with atomic_write(to) if to else nullcontext(sys.stdout.buffer) as output, torch.no_grad():
        for file in files:
            for line in lines_of(ask, model, file):
                output.write(line)
        output.flush()


def lines_of(ask: Callable[..., Iterator[dict[str, Any]]], model: nn.Module, file: Path) -> Iterator[bytes]:
    """Yield a line of JSON for each answer. Raises UserError if the file cannot be read."""
    try:
        for answer in ask(model, file):
            # What the values of NumPy and torch have in common.
            line = json.dumps({"file": str(file), **answer}, default=lambda value: value.tolist())
            yield f"{line}\n".encode()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def newest_export() -> Path:
    """Return the folder of the newest export in runs/. Raises UserError if there is none."""
    found = sorted(RUNS.glob(f"*/{EXPORT}/{ABOUT}"), key=lambda file: file.stat().st_mtime_ns)
    if not found:
        raise UserError(f"there is no export in {RUNS.absolute()}: export.py writes one, or name its folder first")
    return found[-1].parent
