"""Checkpoints: written by rank 0, whole or not at all, and enough to go on as if nothing had happened."""

import copy
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .collectives import averaged_buffers, gather, on_every_rank, on_main, stack_on_main
from .config import AUTO, NEWEST, Config
from .exits import Diverged, UserError
from .files import HashedFile, link_atomically, sync_folder, whole_file
from .manifest import Manifest
from .reproducibility import generator_states, set_generator_states
from .whereabouts import HERE

STARTS = "starts"  # a file of the run directory
STARTS_WITHOUT_PROGRESS = 3  # in a row, with --resume auto; then something is wrong that no restart mends
IF_IT_DOES_NOT_FIT = "go on with the version of the program that wrote it, or start a run in another --run-dir"


@dataclass
class Progress:
    """How far a run has come: plain numbers, the same on every rank."""

    step: int = 0  # optimizer steps
    epoch: int = 0  # epochs completed
    samples_in_epoch: int = 0  # trained in the current epoch, over all ranks
    samples_seen: int = 0  # trained in the whole run, over all ranks
    counted: float = 0.0  # of samples_in_epoch, those whose loss is finite
    loss_sum: float = 0.0  # over those counted
    correct: float = 0.0  # of those counted
    recent_loss_sum: float = 0.0  # over recent_samples
    recent_correct: float = 0.0  # of recent_samples
    recent_samples: float = 0.0  # trained since metrics were due, over all ranks
    best_accuracy: float = -1.0  # on the validation set
    left_out: int = 0  # steps in a row, up to now, whose gradients were not finite

    def advance(self, samples: int) -> None:
        """Count one optimizer step."""
        self.step += 1
        self.samples_in_epoch += samples
        self.samples_seen += samples
        HERE.step = self.step

    def count(self, loss_sum: float, correct: float, samples: float) -> None:
        """Add up what all ranks were seen to train: of the epoch, and since metrics were due."""
        self.counted += samples
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
        self.counted = self.loss_sum = self.correct = 0.0


def claim_run_dir(config: Config) -> list[Path]:
    """Make the run directory, write config.json, and give the checkpoints to resume from, the best to take first.

    Raises UserError, with nothing written, where the checkpoint is missing, or where two runs would mix.
    """
    newest = Manifest(config.run_dir / "checkpoints").newest_first()
    chosen = newest if config.resume in (NEWEST, AUTO) else [Path(config.resume)] if config.resume else []
    if newest and config.resume is None:
        raise UserError(f"{config.run_dir} holds a run already: go on with --resume, or choose another --run-dir")
    if config.resume not in (None, AUTO) and not (chosen and chosen[0].is_file()):
        missing = chosen[0] if chosen else config.run_dir / "checkpoints" / "last.pt"
        raise UserError(f"there is no checkpoint {missing}: leave out --resume to start from the beginning")
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        count_starts(config, newest)
        with whole_file(config.run_dir / "config.json") as file:
            file.write((json.dumps(config.as_plain_dict(), indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write to --run-dir {config.run_dir}: {error.strerror}") from error
    return chosen


def count_starts(config: Config, checkpoints: list[Path]) -> None:
    """Count the starts with --resume auto since the newest checkpoint. Raises UserError where there are too many."""
    file = config.run_dir / STARTS
    if config.resume != AUTO:
        file.unlink(missing_ok=True)
        return
    newest = str(checkpoints[0].stat().st_mtime_ns) if checkpoints else "none"
    # A line for each start, which tells the age of the newest checkpoint.
    starts = (file.read_text().split() if file.exists() else []).count(newest) + 1
    if starts > STARTS_WITHOUT_PROGRESS:
        raise UserError(
            f"the run was started {STARTS_WITHOUT_PROGRESS} times in a row and wrote no checkpoint: mend what ends it, "
            f"then start it once with --resume, or delete {file}"
        )
    file.write_text(f"{newest}\n" * starts)


class Checkpoints:
    """The checkpoints of one run directory: step-00000120.pt and its like, last.pt and best.pt.

    last.pt and best.pt are further names (hard links) of numbered files, so retention never takes them away. What
    the bytes of each must be is in manifest.json.
    """

    def __init__(self, config: Config, model: nn.Module, **parts: Any) -> None:
        """Take what to save: the unwrapped model and, in the order of loading, whatever else has a state_dict()."""
        self.folder = config.run_dir / "checkpoints"
        self.manifest = Manifest(self.folder)
        self.config = config
        self.model = model
        self.parts = {"model": model, **parts}

    def save(self, progress: Progress, *, best: bool = False) -> None:
        """Write a checkpoint. All ranks call it, since each has a state of its own; it returns when the disk has it.

        Raises UserError on every rank where the disk does not take it, and Diverged where a weight is not finite.
        """
        if not all(gather(weights_are_finite(self.model))):
            raise Diverged(f"weights are not finite after step {progress.step}: {self.advice()}")
        about: dict[str, Any] = {"progress": asdict(progress), "config": self.config.as_plain_dict()}
        ranks = {kind: stack_on_main(own) for kind, own in rank_state(self.model).items()}
        about |= {"ranks": ranks, "world_size": dist.get_world_size()}
        HERE.phase = "saving"
        with averaged_buffers(self.model):
            states = {name: part.state_dict() for name, part in self.parts.items()}
            on_main(lambda: self._write(about | states, progress.step, best))

    def _write(self, checkpoint: dict[str, Any], step: int, best: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.folder.glob("*.tmp"):
            left_by_a_kill.unlink()
        path = self.folder / f"step-{step:08d}.pt"
        options = json.dumps(checkpoint["config"], sort_keys=True).encode()
        with whole_file(path, size=lambda: size_of(checkpoint)) as file:
            torch.save(checkpoint, file)
            entry = {"file": path.name, "size": file.size, "step": step, "best": best}
            entry |= {"world_size": checkpoint["world_size"], "config_sha256": hashlib.sha256(options).hexdigest()}
            self.manifest.enter(file.sha256(), entry)
        for name in ("last.pt", "best.pt") if best else ("last.pt",):
            link_atomically(path, self.folder / name)
        sync_folder(self.folder)
        for old in self.manifest.numbered()[: -self.config.keep]:
            old.unlink()

    def restore(self, candidates: list[Path]) -> Progress:
        """Load the first of the checkpoints that is whole and give its progress. All ranks call it.

        Raises UserError on every rank where none is whole, or where it does not fit.
        """
        path = on_main(lambda: first_whole(candidates))
        progress = on_every_rank(lambda: self._load(path))
        HERE.step = progress.step
        logging.info("resumed from %s: epoch %d, step %d", path, progress.epoch + 1, progress.step)
        return progress

    def _load(self, path: Path) -> Progress:
        checkpoint = read_checkpoint(path, required=(*self.parts, "progress", "ranks"))
        try:
            for name, part in self.parts.items():
                # A copy, since an optimizer on a CPU would go on in the file.
                part.load_state_dict(copy.deepcopy(checkpoint[name]))
            # RNG and running statistics belong to a rank: for other ranks they start anew, from the means.
            ranks = checkpoint["ranks"]
            if checkpoint.get("world_size", len(ranks)) == dist.get_world_size():
                set_rank_state(self.model, ranks, dist.get_rank())
            # Versions up to 0.2.0 counted all samples.
            return Progress(**{"counted": checkpoint["progress"]["samples_in_epoch"], **checkpoint["progress"]})
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path} does not fit this program: {reason:.300}; {IF_IT_DOES_NOT_FIT}") from error

    def complete(self) -> None:
        """Forget how often the run was started: it has come to its end. All ranks call it."""
        on_main(lambda: (self.folder.parent / STARTS).unlink(missing_ok=True))

    def advice(self) -> str:
        """What to do where the numbers are not finite any more. All ranks call it."""
        saved = on_main(self.manifest.numbered)
        good = f"{saved[-1]} is the last checkpoint, and good" if saved else "there is no checkpoint yet"
        return f"{good}; look at the data and the learning rate from there on"


def first_whole(candidates: list[Path]) -> Path:
    """Give the first checkpoint that is not damaged, and warn of those before it. Raises UserError where all are."""
    for path in candidates:
        problem = Manifest(path.parent).problem(path)
        if problem is None:
            return path
        logging.warning("%s", problem)
    raise UserError(f"no checkpoint is left to go on from: {problem}")


def size_of(checkpoint: dict[str, Any]) -> int:
    """The bytes that a checkpoint takes on the disk."""
    with HashedFile(Path(os.devnull)) as nothing:
        torch.save(checkpoint, nothing)
    return nothing.size


def read_checkpoint(path: Path, required: Iterable[str]) -> dict[str, Any]:
    """Read the file. Raises UserError where it is damaged, or no checkpoint that has all that is required."""
    try:
        # weights_only: a checkpoint holds plain types alone, so that one from a stranger cannot run code.
        # mmap: each rank reads its own part of what differs from rank to rank, not that of all.
        checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # damaged bytes make torch.load raise nearly anything
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise UserError(f"{path} cannot be read as a checkpoint: {reason:.200}") from error
    if not isinstance(checkpoint, dict) or not set(required) <= set(checkpoint):
        lacking = ", ".join(sorted(set(required) - set(checkpoint if isinstance(checkpoint, dict) else ())))
        raise UserError(f"{path} is not a checkpoint of this program: it does not hold {lacking}; {IF_IT_DOES_NOT_FIT}")
    return checkpoint


def weights_are_finite(model: nn.Module) -> bool:
    """Whether no weight is inf or NaN."""
    return bool(nn.utils.get_total_norm(model.parameters()).isfinite())


def rank_state(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """What differs from rank to rank: the random number generators, and the model's running statistics."""
    device = next(model.parameters()).device
    generators = {name: state.to(device) for name, state in generator_states(device).items()}
    return {"generators": generators, "buffers": dict(model.named_buffers())}


def set_rank_state(model: nn.Module, ranks: Any, rank: int) -> None:
    """Put back what rank_state() gave on a rank, of the states of all ranks in a checkpoint."""
    if isinstance(ranks, list):  # versions up to 0.2.0 saved one after the other
        state = ranks[rank]
    else:
        # Clones, since torch.set_rng_state() misreads what lies within a larger tensor.
        state = {kind: {name: rows[rank].clone() for name, rows in of_all.items()} for kind, of_all in ranks.items()}
    set_generator_states(state["generators"])
    for name, buffer in model.named_buffers():
        buffer.copy_(state["buffers"][name])
