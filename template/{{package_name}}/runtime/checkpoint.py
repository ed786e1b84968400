"""Checkpoints: rank 0 writes them atomically; a run resumes from one exactly."""

import copy
import io
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import Config
from .cli import AUTO, NEWEST, RUNS, as_plain_dict, copied_to, local_run_dir, remote_place
from .collectives import (
    FROM_RANK_0,
    averaged_buffers,
    check_weights_agree,
    gather,
    gather_buffers,
    gather_to_rank_zero,
    on_all_ranks,
    on_each_node,
    on_rank_zero,
    unequal_buffers,
)
from .exits import Diverged, UserError
from .launcher import job_name
from .metrics import Progress
from .records import RESULT
from .seeding import generator_states, provenance, set_generator_states
from .state import (
    OptimizerState,
    buffers_of,
    grow_buffers,
    largest_values,
    plain,
    reason_of,
    ruined,
    set_buffer,
    shapes_of,
    some,
)
from .storage import HashedFile, Manifest, atomic_write, link_atomically, lock, sha256_of_json, sync_folder
from .watchdog import RECORDS, STATUS

if TYPE_CHECKING:
    from .remote import Mirror

STARTS = "starts"  # a file of the run directory
RESUMED = "resumed"  # a file of runs/JOB: the run directory with which a job that was started with --resume goes on
STARTS_WITHOUT_PROGRESS = 3  # in a row, with --resume auto; then something is wrong that no restart fixes
# Weights for --init-from in a folder: of an export, of Hugging Face (an index names several files), of a run, of peft.
IN_FOLDERS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "checkpoints/best.pt",
    "best.pt",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
)
UNTIL_KILLED = 20.0  # seconds that a launcher leaves to a run that it stops
IF_IT_DOES_NOT_FIT = "go on with the version of the program that wrote it, or start a run in another --run-dir"

MIRRORS: "dict[Path, Mirror]" = {}  # of run directories that have a copy in a remote place


def create_run_dir(config: Config) -> tuple[Config, list[Path]]:
    """Make the run directory. All ranks call it.

    Returns the options with the directory that was chosen, and the checkpoints to resume from, the newest first,
    or the one that was named. Raises UserError, with nothing written, if the checkpoint is missing, or if two runs
    would mix.
    """

    def choose() -> tuple[Path, str | None, bool]:
        run_dir = choose_run_dir(config)
        return run_dir, remote_place(config.run_dir) or copied_to(run_dir), config.resume in (NEWEST, AUTO)

    run_dir, url, resumes = on_rank_zero(choose)
    config = replace(config, run_dir=run_dir)
    os.environ.setdefault(RECORDS, str(config.run_dir / "flight-recorder-rank-"))  # unless the user has said where
    if url is None:
        return config, on_rank_zero(lambda: claim(config))
    from .remote import Mirror

    mirror = MIRRORS[config.run_dir] = Mirror(url, config.run_dir, config.keep)
    on_rank_zero(lambda: mirror.fetch(resumes=resumes))
    nodes = gather(platform.node())
    if resumes and len({*nodes}) > 1:
        on_rank_zero(mirror.copy_now)  # so others find the newest checkpoint of this node there
        leads = nodes.index(platform.node()) == dist.get_rank() > 0
        on_each_node(lambda: mirror.fetch(resumes=True, follows=True), leads=leads)
    return config, on_rank_zero(lambda: mirror.begin(lambda: claim(config)))


def choose_run_dir(config: Config) -> Path:
    """Return the run directory: for --run-dir auto that of this job, the newest one for --resume, or a new one."""
    if config.run_dir != Path(AUTO):
        return local_run_dir(config.run_dir)
    job = job_name()
    resumed = RUNS / (job or "") / RESUMED
    if job and config.resume != NEWEST:
        return Path(os.fsdecode(resumed.read_bytes())) if config.resume == AUTO and resumed.exists() else RUNS / job
    newest = newest_run()
    if newest and config.resume in (NEWEST, AUTO):
        if not take(newest):
            raise UserError(f"{newest}, the newest run, is still training: say which one goes on by --run-dir")
        if job:  # to know it after a restart, when another run may be the newest
            resumed.parent.mkdir(exist_ok=True)
            resumed.write_bytes(os.fsencode(newest))
        return newest
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    names = [name, *(f"{name}_{number}" for number in range(2, 100))]
    return next(RUNS / name for name in names if not (RUNS / name).exists())


def newest_run() -> Path | None:
    """Return the run directory in runs/ with the newest checkpoint, if there is one."""
    saved = sorted(RUNS.glob("*/checkpoints/last.pt"), key=lambda file: file.stat().st_mtime_ns)
    return saved[-1].parent.parent if saved else None


def take(run_dir: Path) -> bool:
    """Take a run for this program, until it ends. Returns False if another one has it."""
    return lock(os.open(run_dir / "in-use", os.O_RDWR | os.O_CREAT))


def claim(config: Config) -> list[Path]:
    """Make the run directory with config.json, on rank 0."""
    newest = Manifest(config.run_dir / "checkpoints").newest_first()
    chosen = newest if config.resume in (NEWEST, AUTO) else candidates_of(Path(config.resume)) if config.resume else []
    if config.resume not in (None, AUTO) and not (chosen and chosen[0].is_file()):
        missing = config.run_dir / "checkpoints" / "last.pt" if config.resume == NEWEST else config.resume
        if remote_place(Path(str(missing))):
            raise UserError(f"--resume {missing} is no path: give the URL to --run-dir, and --resume alone")
        advice = f"--resume alone takes {newest[0]}" if newest else "leave out --resume to start from the beginning"
        raise UserError(f"there is no checkpoint {missing}: {advice}")
    if newest and (config.resume is None or chosen[0].resolve().parent != newest[0].resolve().parent):
        raise UserError(f"{config.run_dir} holds a run already: go on with --resume, or choose another --run-dir")
    if config.init_from and not chosen:
        initial_weights(config.init_from)  # to refuse it before anything is written
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        if not take(config.run_dir) and config.resume is None:
            raise UserError(f"{config.run_dir} is that of a run that is training: choose another --run-dir")
        count_starts(config, newest)
        (config.run_dir / RESULT).unlink(missing_ok=True)  # of a start before
        with atomic_write(config.run_dir / "config.json") as file:
            file.write((json.dumps(as_plain_dict(config), indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write to --run-dir {config.run_dir}: {error.strerror}") from error
    return chosen


def candidates_of(path: Path) -> list[Path]:
    """Return the checkpoints that --resume names: a file, or those of a run directory or its checkpoints/."""
    if not path.is_dir():
        return [path]
    return Manifest(path / "checkpoints").newest_first() or Manifest(path).newest_first()


def initial_weights(init_from: str, *, is_leader: bool = True) -> Path:
    """Return the file that --init-from names, or the weights in its folder. The leader of a node downloads a URL.

    Raises UserError if there is none.
    """
    path = Path(init_from)
    if url := remote_place(path):
        from .pretrained import download, place_of_url  # not at the top: most runs do without it

        path = download(url) if is_leader else place_of_url(url)
    files = [path / name for name in IN_FOLDERS] if path.is_dir() else [path]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        wanted = f"there is none of {', '.join(IN_FOLDERS)} in {init_from}"
        missing = wanted if path.is_dir() else f"there is no file {init_from}"
        raise UserError(f"{missing}: leave out --init-from to begin with random weights")
    return file


def count_starts(config: Config, checkpoints: list[Path]) -> None:
    """Count the starts with --resume auto since the newest checkpoint. Raises UserError if there are too many."""
    file = config.run_dir / STARTS
    if config.resume != AUTO:
        file.unlink(missing_ok=True)
        return
    newest = str(checkpoints[0].stat().st_mtime_ns) if checkpoints else "none"
    # A line for each start, with the time of the newest checkpoint.
    starts = (file.read_text().split() if file.exists() else []).count(newest) + 1
    if starts > STARTS_WITHOUT_PROGRESS:
        raise UserError(
            f"the run was started {STARTS_WITHOUT_PROGRESS} times in a row and wrote no checkpoint: fix what ends it, "
            f"then start it once with --resume, or delete {file}"
        )
    file.write_text(f"{newest}\n" * starts)


class Checkpoints:
    """The checkpoints of one run directory: step-00000120.pt and its like, last.pt and best.pt.

    last.pt and best.pt are further names (hard links) of numbered files, so retention never takes them away. What
    the bytes of each must be is in manifest.json.
    """

    def __init__(self, config: Config, progress: Progress, model: nn.Module, **parts: Any) -> None:
        """Take what to save: the unwrapped model and, in the order of loading, whatever else has a state_dict().

        Model and optimizer are as they were built: what has changed in them since is known by that.
        """
        self.folder = config.run_dir / "checkpoints"
        self.best = self.folder / "best.pt"  # the weights for the test sets
        self.manifest = Manifest(self.folder)
        self.config = config
        self.progress = progress
        self.model = model
        named = {
            name: OptimizerState(model, each) if isinstance(each, Optimizer) else each for name, each in parts.items()
        }
        self.parts: dict[str, Any] = {"model": model, **named, "progress": progress}
        self.shapes = shapes_of(model)
        self.largest: dict[str, float] = {}  # values of weights and buffers at the start
        self.seconds = 0.0  # that saves have taken of the training
        self.writer = ThreadPoolExecutor(max_workers=1)
        self.mirror = MIRRORS.get(config.run_dir)
        self.before_save: Callable[[], None] = lambda: None  # rank 0 does this then, so that its records are not behind
        self.writing: Future[Any] | None = None  # on rank 0, with --async-saves; it may outlive the process group

    def save(self, *, wait: bool = False) -> None:
        """Write a checkpoint. All ranks call it, since each has a state of its own; it returns when the disk has it.

        With --async-saves it returns when the memory has it, unless it shall wait.
        Raises UserError on every rank if the disk does not take it or the last one, or if something in it cannot be
        read again; Diverged if what was finite is not any more.
        """
        began = time.perf_counter()
        self.finish()
        largest = largest_values(self.model)
        found = gather(ruined(self.largest, largest))
        if any(found):
            told = f"{self.advice()}; not finite: {some({*chain(*found)})}"
            raise Diverged(f"weights are not finite after step {self.progress.step}: {told}")
        check_weights_agree(self.model, largest)
        unequal = unequal_buffers(self.model)
        ranks: dict[str, Any] = {kind: gather_to_rank_zero(own) for kind, own in rank_state(self.model).items()}
        of_ranks = gather_buffers(self.model, unequal)
        ranks["buffers"] |= {name: [buffers[name] for buffers in of_ranks] for name in unequal}
        entry = {"step": self.progress.step, "best": self.progress.is_best_step(), "world_size": dist.get_world_size()}
        STATUS.phase = "saving"
        with averaged_buffers(self.model, unequal):
            checkpoint = self._state() | {"ranks": ranks, "world_size": entry["world_size"]}
            write = self._begin if self.config.async_saves else self._write
            on_rank_zero(self.before_save)
            on_rank_zero(lambda: write(writer_of(checkpoint | {"code": provenance()}), entry))
        if wait:
            self.finish()
        self.seconds += time.perf_counter() - began

    def _state(self) -> dict[str, Any]:
        """Return what is the same on all ranks."""
        shapes = shapes_of(self.model)
        grown = {name: self.shapes.get(name) for name in shapes if shapes[name] != self.shapes.get(name)}
        state = {name: part.state_dict() for name, part in self.parts.items()}
        return {"config": as_plain_dict(self.config), **state, **({"grown_buffers": grown} if grown else {})}

    def finish(self) -> None:
        """Wait until the disk has what was saved last. All ranks call it. Raises UserError if it does not take it."""
        if self.config.async_saves:
            on_rank_zero(lambda: self.writing and self.writing.result())

    def _begin(self, put: Callable[[Any], Any], entry: dict[str, Any]) -> None:
        memory = io.BytesIO()
        put(memory)
        self.writing = self.writer.submit(self._write, lambda file: file.write(memory.getbuffer()), entry)

    def _write(self, put: Callable[[Any], Any], entry: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.folder.glob("*.tmp"):
            left_by_a_kill.unlink()
        path = self.folder / f"step-{entry['step']:08d}.pt"
        config_sha256 = sha256_of_json(as_plain_dict(self.config))
        with atomic_write(path, size=lambda: size_of(put)) as file:
            put(file)
            about = {"file": path.name, "size": file.size, "config_sha256": config_sha256}
            self.manifest.enter(file.sha256(), about | entry)
        for name in ("last.pt", "best.pt") if entry["best"] else ("last.pt",):
            link_atomically(path, self.folder / name)
        sync_folder(self.folder)
        for old in self.manifest.numbered()[: -self.config.keep]:
            old.unlink()
        if self.mirror:
            self.mirror.send()

    def restore(self, candidates: list[Path]) -> None:
        """Load the first of the checkpoints that is whole, if there are any, and get ready to save. All ranks call it.

        Raises UserError on every rank if none is whole or fits, or if the parts hold what cannot be saved.
        """
        if not candidates:
            self._get_ready()
            return
        path = on_rank_zero(lambda: first_whole(candidates))
        before = on_all_ranks(lambda: self._load(path))
        self.progress.check_samples()
        if path.resolve().parent != self.folder.resolve():
            self.progress.forget_best()  # the best.pt of another run is not here
            if self.progress.is_done():
                self.best = path
        logging.info("resumed from %s: epoch %d, step %d", path, self.progress.epoch + 1, self.progress.step)
        if changed := changed_options(before.get("config", {}), self.config):
            logging.info("other options than before: %s", ", ".join(changed.values()))
        code = on_rank_zero(provenance)
        if files := changed_files(before.get("code", code), code):
            commits = f"commit {code['commit']}, was {before['code']['commit']}"
            logging.info("other code than before: %s (%s)", ", ".join(files), commits)
        self._get_ready()

    def _get_ready(self) -> None:
        """Note what is finite, and try on all parts whether they can be saved."""
        self.largest = largest_values(self.model)
        state = self._state()
        on_rank_zero(lambda: bool(writer_of(state)))

    def _load(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint, and return what it says about its run."""
        checkpoint = read_checkpoint(path, required=(*self.parts, "ranks", "world_size"))
        changed = changed_options(checkpoint.get("config", {}), self.config)
        if "seed" in changed and checkpoint["progress"].get("samples_in_epoch"):
            raise UserError(f"{changed['seed']} would change the order of samples within an epoch: leave it out")
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        try:
            grow_buffers(self.model, checkpoint.get("grown_buffers", {}), checkpoint["model"])
            for name, part in self.parts.items():
                further = [{*changed}] if isinstance(part, OptimizerState) else []
                # On a CPU, the optimizer would write to the mapped file; a GPU has its own memory.
                part.load_state_dict(copy.deepcopy(checkpoint[name]) if on_cpu else checkpoint[name], *further)
                # RNG and running statistics belong to a rank: other ranks start again, from the means.
                if part is self.model and checkpoint["world_size"] == dist.get_world_size():
                    set_rank_state(self.model, checkpoint["ranks"], dist.get_rank(), new_seed="seed" in changed)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path} does not fit this program: {reason:.300}; {IF_IT_DOES_NOT_FIT}") from error
        return {name: checkpoint[name] for name in ("config", "code") if name in checkpoint}

    def complete(self) -> None:
        """Wait for the last save and its copy, and forget how often the run was started. All ranks call it at its end.

        Raises UserError if a remote place does not take the copy.
        """
        self.finish()
        on_rank_zero(lambda: (self.folder.parent / STARTS).unlink(missing_ok=True))
        if self.mirror:
            on_rank_zero(self.mirror.finish)

    def copy_rest(self) -> None:
        """Copy what was written after the last save to the remote place, if there is one. Rank 0 calls it at the end.

        Raises UserError if the place does not take it.
        """
        if self.mirror and not self.mirror.gave_up:
            self.mirror.send()
            self.mirror.finish(UNTIL_KILLED)

    def advice(self) -> str:
        """Return what to do if the numbers are not finite any more. All ranks call it."""
        self.finish()
        saved = on_rank_zero(self.manifest.numbered)
        good = f"{saved[-1]} is the last checkpoint, and good" if saved else "there is no checkpoint yet"
        return f"{good}; look at the data and the learning rate from there on"


def changed_options(before: dict[str, Any], config: Config) -> dict[str, str]:
    """Return the options that were others in the run that wrote a checkpoint, and their words with both values."""
    start = (*FROM_RANK_0, "init_from")  # they say how a run begins
    now = {name: value for name, value in as_plain_dict(config).items() if name not in start and name in before}
    other = {name: value for name, value in now.items() if value != before[name]}
    return {name: f"--{name.replace('_', '-')} {value} (was {before[name]})" for name, value in other.items()}


def changed_files(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the files of the code that were others, or not there, in the run that wrote a checkpoint."""
    return sorted({name for name, _ in before["files"].items() ^ now["files"].items()})


def first_whole(candidates: list[Path]) -> Path:
    """Return the first checkpoint that is not damaged, and warn of those before it. Raises UserError if all are."""
    for path in candidates:
        problem = Manifest(path.parent).problem(path)
        if problem is None:
            return path
        logging.warning("%s", problem)
    raise UserError(f"no checkpoint is left to go on from: {problem}")


def size_of(put: Callable[[Any], Any]) -> int:
    """Return the bytes that a checkpoint, which is put into a file, takes on the disk."""
    with HashedFile(Path(os.devnull)) as nothing:
        put(nothing)
    return nothing.size


def read_checkpoint(path: Path, required: Iterable[str]) -> dict[str, Any]:
    """Read the file. Raises UserError if it is damaged, or no checkpoint that has all that is required."""
    try:
        # weights_only: a checkpoint holds plain types alone, so that one from a stranger cannot run code.
        # mmap: each rank reads only its own part of the per-rank state. It needs a name in UTF-8, which /dev/fd has in
        # any locale.
        with open(path, "rb") as file:
            mapped = is_zipfile(path)  # not so the format before PyTorch 1.6
            checkpoint = torch.load(f"/dev/fd/{file.fileno()}", map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:  # damaged bytes make torch.load raise nearly anything
        raise UserError(f"{path} cannot be read as a checkpoint: {reason_of(error):.200}") from error
    if not isinstance(checkpoint, dict):
        raise UserError(
            f"{path} holds a {type(checkpoint).__name__}, and no tensors by their names: save a state_dict()"
        )
    if lacking := ", ".join(sorted({*required} - {*checkpoint})):
        raise UserError(f"{path} is not a checkpoint of this program: it does not hold {lacking}; {IF_IT_DOES_NOT_FIT}")
    return checkpoint


def writer_of(checkpoint: dict[str, Any]) -> Callable[[Any], None]:
    """Return what writes a checkpoint to a file. Raises UserError if it could not be read again."""
    readable = {name: plain(part, name) for name, part in checkpoint.items()}
    return lambda file: torch.save(readable, file)


def rank_state(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return what differs from rank to rank: the random number generators, and the model's running statistics."""
    device = next(model.parameters()).device
    states = generator_states(device)
    # To be gathered there; MPS has one rank, and no float64.
    generators = {name: state if device.type == "mps" else state.to(device) for name, state in states.items()}
    return {"generators": generators, "buffers": buffers_of(model)[0]}


def set_rank_state(model: nn.Module, ranks: dict[str, dict[str, Any]], rank: int, *, new_seed: bool) -> None:
    """Go on with what is saved of a rank, of the states of all ranks; with a new seed, random numbers start again."""
    if not new_seed:
        # Clones, since torch.set_rng_state() misreads what lies within a larger tensor.
        set_generator_states({name: rows[rank].clone() for name, rows in ranks["generators"].items()})
    statistics, others = buffers_of(model)
    for name in (statistics | others).keys() & ranks["buffers"].keys():
        set_buffer(model, name, ranks["buffers"][name][rank])
