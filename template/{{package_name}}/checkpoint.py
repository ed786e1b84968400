"""Checkpoints: written by rank 0, whole or not at all, and enough to go on as if nothing had happened."""

import json
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .collectives import averaged_buffers, gather, on_every_rank, on_main
from .config import NEWEST, Config
from .exits import UserError
from .reproducibility import generator_states, set_generator_states

IF_IT_DOES_NOT_FIT = "go on with the version of the program that wrote it, or start a run in another --run-dir"


@dataclass
class Progress:
    """How far a run has come: plain numbers, the same on every rank."""

    step: int = 0  # optimizer steps
    epoch: int = 0  # epochs completed
    samples_in_epoch: int = 0  # trained in the current epoch, over all ranks
    samples_seen: int = 0  # trained in the whole run, over all ranks
    loss_sum: float = 0.0  # over samples_in_epoch
    correct: float = 0.0  # of samples_in_epoch
    recent_loss_sum: float = 0.0  # over recent_samples
    recent_correct: float = 0.0  # of recent_samples
    recent_samples: float = 0.0  # trained since metrics were due, over all ranks
    best_accuracy: float = -1.0  # on the validation set

    def advance(self, samples: int) -> None:
        """Count one optimizer step."""
        self.step += 1
        self.samples_in_epoch += samples
        self.samples_seen += samples

    def count(self, loss_sum: float, correct: float, samples: float) -> None:
        """Add up what all ranks were seen to train: of the epoch, and since metrics were due."""
        self.loss_sum += loss_sum
        self.correct += correct
        self.recent_loss_sum += loss_sum
        self.recent_correct += correct
        self.recent_samples += samples

    def forget_recent(self) -> None:
        """Begin the sums of the next metrics."""
        self.recent_loss_sum = self.recent_correct = self.recent_samples = 0.0

    def out_of_steps(self, config: Config) -> bool:
        """Whether --max-steps ends the run here."""
        return 0 < config.max_steps <= self.step

    def complete_epoch(self) -> None:
        """Go on to the start of the next epoch."""
        self.epoch += 1
        self.samples_in_epoch = 0
        self.loss_sum = self.correct = 0.0


def claim_run_dir(config: Config) -> Path | None:
    """Make the run directory, write config.json, and give the checkpoint to resume from, if any.

    Raises UserError, with nothing written, where that checkpoint is missing or where two runs would mix.
    """
    last = config.run_dir / "checkpoints" / "last.pt"
    checkpoint = last if config.resume == NEWEST else Path(config.resume) if config.resume else None
    if checkpoint is None and last.exists():
        raise UserError(f"{config.run_dir} holds a run already: go on with --resume, or choose another --run-dir")
    if checkpoint is not None and not checkpoint.is_file():
        raise UserError(f"there is no checkpoint {checkpoint}: leave out --resume to start from the beginning")
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        (config.run_dir / "config.json").write_text(json.dumps(config.as_plain_dict(), indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write to --run-dir {config.run_dir}: {error.strerror}") from error
    return checkpoint


class Checkpoints:
    """The checkpoints of one run directory: step-00000120.pt and its like, last.pt and best.pt.

    last.pt and best.pt are further names (hard links) of numbered files, so retention never takes them away.
    """

    def __init__(self, config: Config, model: nn.Module, **parts: Any) -> None:
        """Take what to save: the unwrapped model and, in the order of loading, whatever else has a state_dict()."""
        self.folder = config.run_dir / "checkpoints"
        self.config = config
        self.model = model
        self.parts = {"model": model, **parts}

    def save(self, progress: Progress, *, best: bool = False) -> None:
        """Write a checkpoint. All ranks call it, since each has a state of its own; it returns when the disk has it."""
        about = {"progress": asdict(progress), "config": self.config.as_plain_dict()}
        ranks = gather(rank_state(self.model))
        with averaged_buffers(self.model):
            states = {name: part.state_dict() for name, part in self.parts.items()}
            on_main(lambda: self._write(about | states | {"ranks": ranks}, progress.step, best))

    def _write(self, checkpoint: dict[str, Any], step: int, best: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.pt"
        write_atomically(path, checkpoint)
        for name in ("last.pt", "best.pt") if best else ("last.pt",):
            link_atomically(path, self.folder / name)
        sync_folder(self.folder)
        by_age = sorted(self.folder.glob("step-*.pt"), key=lambda file: file.stat().st_mtime_ns)
        for old in by_age[: -self.config.keep]:
            old.unlink()

    def restore(self, path: Path) -> Progress:
        """Load a checkpoint and give its progress. All ranks call it.

        Raises UserError on every rank where the file is damaged or does not fit.
        """
        progress = on_every_rank(lambda: self._load(path))
        logging.info("resumed from %s: epoch %d, step %d", path, progress.epoch + 1, progress.step)
        return progress

    def _load(self, path: Path) -> Progress:
        checkpoint = read_checkpoint(path, required=(*self.parts, "progress", "ranks"))
        try:
            for name, part in self.parts.items():
                part.load_state_dict(checkpoint[name])
            # RNG and running statistics belong to a rank: for other ranks they start anew, from the means.
            if len(checkpoint["ranks"]) == dist.get_world_size():
                set_rank_state(self.model, checkpoint["ranks"][dist.get_rank()])
            return Progress(**checkpoint["progress"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path} does not fit this program: {reason:.300}; {IF_IT_DOES_NOT_FIT}") from error


def read_checkpoint(path: Path, required: Iterable[str]) -> dict[str, Any]:
    """Read the file. Raises UserError where it is damaged, or no checkpoint that has all that is required."""
    try:
        # weights_only: a checkpoint holds plain types alone, so that one from a stranger cannot run code.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make torch.load raise nearly anything
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise UserError(f"{path} cannot be read as a checkpoint: {reason:.200}") from error
    if not isinstance(checkpoint, dict) or not set(required) <= set(checkpoint):
        lacking = ", ".join(sorted(set(required) - set(checkpoint if isinstance(checkpoint, dict) else ())))
        raise UserError(f"{path} is not a checkpoint of this program: it does not hold {lacking}; {IF_IT_DOES_NOT_FIT}")
    return checkpoint


def write_atomically(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write the file so that a crash at any moment leaves the old one or the new one, whole.

    Raises UserError, with nothing left behind, where the disk does not take it.
    """
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        # torch.save hides a full disk behind a RuntimeError.
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"{path} could not be written: {reason}") from error


def link_atomically(path: Path, name: Path) -> None:
    """Give the file a second name, which until then may belong to another file."""
    temporary = name.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # some file systems have no hard links
        shutil.copy2(path, temporary)
    os.replace(temporary, name)


def sync_folder(folder: Path) -> None:
    """Make new names in the folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def rank_state(model: nn.Module) -> dict[str, Any]:
    """What differs from rank to rank: the random number generators, and the model's running statistics."""
    buffers = {name: buffer.cpu() for name, buffer in model.named_buffers()}
    return {"generators": generator_states(), "buffers": buffers}


def set_rank_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Put back what rank_state() gave."""
    set_generator_states(state["generators"])
    for name, buffer in model.named_buffers():
        buffer.copy_(state["buffers"][name])
