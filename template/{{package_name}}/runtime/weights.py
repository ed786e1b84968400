"""Weights of a checkpoint or of a safetensors file, without the state of a run."""

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Config
from ..model import build_model
from .checkpoint import IF_IT_DOES_NOT_FIT, initial_weights, read_checkpoint
from .cli import ABOUT
from .collectives import on_all_ranks, on_each_node, on_rank_zero
from .exits import UserError, in_one_line
from .launcher import DistEnv
from .seeding import seed_everything
from .state import grow_buffers, some
from .storage import Manifest, atomic_write, sha256_of
from .task_functions import optional

OF_OTHERS = ("state_dict", "model_state_dict", "module", "weights")  # where other programs keep them in a file

Weights = dict[str, Any]  # parameters and buffers by name; nothing but tensors, unless the model adds something


def is_strided(value: Any) -> bool:
    """Return whether it is a tensor that has a place in memory, as sparse ones have none."""
    return isinstance(value, Tensor) and value.layout == torch.strided


def place_of(value: Any) -> tuple[Any, ...]:
    """Return what tensors that are one and the same have in common, such as tied weights."""
    if not is_strided(value):
        return (id(value),)
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def weights_of(checkpoint: dict[str, Any]) -> tuple[Weights, str]:
    """Return the weights of a checkpoint, and what they are: "average", if it has averaged parameters, or "last"."""
    weights: Weights = checkpoint["model"]
    average = (checkpoint.get("update") or {}).get("average") or {}
    averaged = {place_of(weights[name]): tensor for name, tensor in average.items() if name in weights}
    kind = "average" if averaged else "last"
    return {name: averaged.get(place_of(value), value) for name, value in weights.items()}, kind


def read_whole(path: Path) -> tuple[dict[str, Any], str]:
    """Read a checkpoint, and the digest of its bytes. Raises UserError or OSError if it is damaged, none or missing."""
    while True:
        before = path.stat()
        sha256 = sha256_of(path)
        if problem := Manifest(path.parent).problem(path, sha256):
            raise UserError(problem)
        checkpoint = read_checkpoint(path, required=("model", "progress"))
        after = path.stat()
        if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
            return checkpoint, sha256
        # A run that trains on has given the name to another file meanwhile.


def shards_of(path: Path) -> list[Path]:
    """Return the files that hold the weights: those of an index, those of which this is one, or the file itself.

    Raises UserError if one is missing.
    """
    if path.name.endswith(".index.json"):
        try:
            names = sorted({*json.loads(path.read_text())["weight_map"].values()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read as an index of weights: {in_one_line(error)}") from error
    elif numbered := re.fullmatch(r"(.+-)(\d{5})-of-(\d{5})(\..+)", path.name):
        start, _, number, suffix = numbered.groups()
        names = [f"{start}{i:05d}-of-{number}{suffix}" for i in range(1, int(number) + 1)]
    else:
        return [path]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise UserError(f"{path.parent} lacks {some(missing)}, of the files that {path.name} belongs to")
    return [path.with_name(name) for name in names]


def read_shards(path: Path) -> Weights:
    """Return the weights of all shards, by the names that rename() of task.py gives them. Raises UserError."""
    rename = optional("rename")
    found: Weights = {}
    for shard in shards_of(path):
        for name, value in read_weights(shard).items():
            new = rename(name) if rename else name
            if new is None:
                continue
            if not isinstance(new, str):
                raise UserError(f"task.py: rename({name!r}) must return a name, or None to leave it out, not {new!r}")
            if new in found:
                raise UserError(f"task.py: rename() gives {name} the name {new}, which another tensor has")
            found[new] = value
    return found


def read_weights(path: Path) -> Weights:
    """Return the weights of a file of either kind, by its suffix. Raises UserError if it cannot be read."""
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    found = read_checkpoint(path, required=())
    if isinstance(found.get("model"), dict):
        return weights_of(found)[0]
    weights = next((found[key] for key in OF_OTHERS if isinstance(found.get(key), dict)), found)
    return {str(name): value for name, value in weights.items()}


def read_safetensors(path: Path) -> Weights:
    """Return the tensors of a file; tied ones, which are in it once, by each of their names."""
    from safetensors import SafetensorError, safe_open  # not at the top: training does without

    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in [*file.keys()]}
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
            return weights | {name: weights[first] for name, first in tied.items()}
    except (OSError, SafetensorError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from error


def write_safetensors(weights: Weights, path: Path) -> str:
    """Write the file, whole or not at all, and return its digest. Raises UserError if the disk does not take it."""
    from safetensors.torch import save  # the same

    if others := [name for name, value in weights.items() if not is_strided(value)]:
        raise UserError(f"safetensors hold dense tensors alone, and {others[0]} of the model is none")
    first: dict[Any, str] = {}
    tied = {name: first.setdefault(place_of(tensor), name) for name, tensor in weights.items()}
    tensors = {name: weights[name].clone(memory_format=torch.contiguous_format) for name in first.values()}
    twice = {name: other for name, other in tied.items() if name != other}
    content = save(tensors, metadata={"format": "pt", "tied": json.dumps(twice)})
    with atomic_write(path, size=lambda: len(content)) as file:
        file.write(content)
    return file.sha256()


def verify(path: Path) -> None:
    """Raise UserError or OSError if a file is missing or not what the record beside it says, if there is one."""
    if path.suffix != ".safetensors":
        if problem := Manifest(path.parent).problem(path):
            raise UserError(problem)
    elif (about := path.with_name(ABOUT)).is_file():
        try:
            expected = json.loads(about.read_text()).get("sha256")
        except (ValueError, AttributeError) as error:
            raise UserError(f"{about} is damaged: export the model once more, or delete it") from error
        if expected not in (None, sha256_of(path)):
            raise UserError(f"{path} is damaged: its bytes are not those that {ABOUT} describes")


def initial_model(config: Config, env: DistEnv, saved: Sequence[Path]) -> nn.Module:
    """Build the same model on every rank, with the weights of --init-from unless the run resumes. All ranks call it.

    Raises UserError on every rank if the file cannot be read, or if nothing in it fits.
    """
    with seed_everything(config.seed, env.rank):
        model = build_model(config)
    if (init_from := config.init_from) and not saved:
        is_leader = env.local_rank == 0
        on_each_node(lambda: verify(initial_weights(init_from)), leads=is_leader)
        on_all_ranks(lambda: load_what_fits(model, initial_weights(init_from, is_leader=False)))
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a checkpoint, averaged ones if it has them. All ranks call it, and rank 0 reads the file."""

    def read() -> tuple[Weights, Any]:
        checkpoint, _ = read_whole(path)
        return weights_of(checkpoint)[0], checkpoint.get("grown_buffers", {})

    fill(model, *on_rank_zero(read), path)


def fill(model: nn.Module, weights: Weights, grown: dict[str, Any], path: Path) -> None:
    """Give a model all its weights, of this file. Raises UserError if they do not fit."""
    grow_buffers(model, grown, weights)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} does not fit this program: {reason:.300}; {IF_IT_DOES_NOT_FIT}") from error


def load_what_fits(model: nn.Module, path: Path) -> None:
    """Load the weights that have a name and a shape of the model's, and log what does not fit."""
    own, weights = model.state_dict(), read_shards(path)
    shapes = [{name: getattr(value, "shape", None) for name, value in each.items()} for each in (weights, own)]
    same_shape = {name for name, _ in shapes[0].items() & shapes[1].items()}
    fitting = {name: weights[name] for name in same_shape.difference(getattr(model, "of_data", ()))}
    hint = prefix_hint(own, weights)
    if not fitting:
        both = f"the model has {some(own)}, and it has {some(weights)}{hint}"
        raise UserError(f"--init-from {path}: nothing in it has a name and a shape of the model's: {both}")
    try:
        model.load_state_dict(fitting, strict=False)
    except RuntimeError as error:
        raise UserError(f"--init-from {path} does not fit: {in_one_line(error):.300}") from error
    loaded = {place_of(own[name]) for name in fitting}  # tied weights, by whichever of their names
    logging.info("began with %d of %d tensors of %s%s", len(fitting), len(weights), path, hint)
    missing = {name for name in own.keys() - weights.keys() if place_of(own[name]) not in loaded}
    stay = "stay as build_model() made them"
    unlike = {
        f"{name} {sizes(weights[name])}, {sizes(own[name])} in the model"
        for name in weights.keys() & own.keys() - same_shape
    }
    for names, what in (
        (missing, f"are not in it, and {stay}"),
        (unlike, f"have another shape, and {stay}"),
        (same_shape - fitting.keys(), f"are of_data, and {stay}"),
        (weights.keys() - own.keys(), "are not in the model, and were left out"),
    ):
        if names:
            logging.info("%d tensors %s: %s", len(names), what, some(names))


def sizes(value: Any) -> str:
    """Return the shape of a tensor for a reader, such as 10 x 512."""
    return " x ".join(map(str, getattr(value, "shape", ()))) or type(value).__name__


def prefix_hint(own: Collection[str], names: Collection[str]) -> str:
    """Return which beginning of names, such as "module.", keeps those of a file and those of the model apart."""
    for one, other, what in (
        (own, names, "names in it begin with {}, which the model lacks"),
        (names, own, "names of the model begin with {}, which it lacks"),
    ):
        rests = ((name, rest) for name in other if name not in one for rest in endings(name) if rest in one)
        if most := Counter(name.removesuffix(rest) for name, rest in rests).most_common(1):
            return "; " + what.format(f'"{most[0][0]}"')
    return ""


def endings(name: str) -> Iterator[str]:
    """Yield what is left of a name without its first parts."""
    while name := name.partition(".")[2]:
        yield name
