"""What a batch is made of: samples of the owner's dataset, whole, in one piece, and with a name if they fail."""

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info

from .. import data
from .exits import UserError, in_one_line
from .sampling import Batch


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch with a function applied to each of its tensors, in tuples, lists, dicts and dataclasses."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return type(batch)({name: map_tensors(part, function) for name, part in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(part, function) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(part, function) for part in batch)
    if is_dataclass(batch):
        parts = {field.name: map_tensors(getattr(batch, field.name), function) for field in fields(batch)}
        return replace(batch, **parts)  # type: ignore[type-var]
    return batch


def collate(samples: Sequence[Any]) -> Any:
    """Make a batch of samples, as PyTorch's default_collate() does it, of dataclasses too."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: collate([sample[name] for sample in samples]) for name in first}
    if is_dataclass(first):
        parts = {field.name: collate([getattr(sample, field.name) for sample in samples]) for field in fields(first)}
        return replace(first, **parts)  # type: ignore[type-var]
    if isinstance(first, list | tuple):
        columns = [collate(column) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    return default_collate([*samples])


def form(value: Any) -> str:
    """Return what a sample is: its types and, of its tensors and arrays, dtype and shape."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if is_dataclass(value):
        return f"{type(value).__name__} of {form({each.name: getattr(value, each.name) for each in fields(value)})}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {form(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(form, value)) + ")"
    return type(value).__name__


def can_be_pinned(tensor: Tensor) -> bool:
    """Return whether it can lie where a GPU reads it without waiting: not if it is sparse, or on a GPU already."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


class Pinnable:
    """A batch as PyTorch's loader takes it, which pins what it knows: tuples and dicts, but no dataclasses."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def pin_memory(self) -> "Pinnable":
        """Copy it to memory from which a GPU can read without waiting."""
        return Pinnable(map_tensors(self.batch, lambda each: each.pin_memory() if can_be_pinned(each) else each))


class BatchDataset(Dataset[Pinnable]):
    """Loads whole batches, with the random generators seeded for each.

    So augmentation is the same after a resume and with any number of workers, and dropout is not affected.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, batch: Batch) -> Pinnable:
        before = torch.get_rng_state()
        seed = hash(batch.rng_key)
        # torch.manual_seed() would seed the GPUs too, which takes 100 times as long.
        torch.default_generator.manual_seed(seed)
        if get_worker_info() is not None:  # without workers, they go on with the generators of the rank
            random.seed(seed)
            np.random.seed(seed % 2**32)
        try:
            try:
                if hasattr(self.dataset, "__getitems__"):  # one call for 16 samples: 20 us instead of 47
                    fetched = loaded(self.dataset.__getitems__, batch.indices)
                else:
                    fetched = [loaded(self.dataset.__getitem__, index) for index in batch.indices]
            except UserError as error:  # of a sample, which no other rank has
                error.speaks = True
                return Pinnable(error)  # to be raised by the rank: a loader makes its traceback part of the message
            if isinstance(fetched, list) and len(fetched) != len(batch.indices):
                found = f"a list of {len(fetched)} for {len(batch.indices)} indices"
                raise UserError(f"data.py: __getitems__ returned {found}: return a tuple or dict for a whole batch")
            if fetched is None:
                raise UserError("data.py: __getitems__ returned None: return a tuple or dict for a whole batch")
            return Pinnable(collated(fetched, batch.indices) if isinstance(fetched, list) else fetched)
        finally:
            torch.set_rng_state(before)


def loaded(load: Callable[[Any], Any], indices: Any) -> Any:
    """Return what a dataset does. An error that is none for the user names the sample and the owner's line, too."""
    try:
        return load(indices)
    except UserError:
        raise
    except Exception as error:
        own = Path(data.__file__).parent
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        place = next((place for place in places[::-1] if Path(place).parent == own), places[-1])
        what = f"one of samples {', '.join(map(str, indices))}" if isinstance(indices, list) else f"sample {indices}"
        raise RuntimeError(f"{what} cannot be loaded: {in_one_line(error)} (at {place})") from error


def collated(samples: Sequence[Any], indices: Sequence[int]) -> Any:
    """Return a batch of samples, or the error of the user, which names two that are not alike."""
    try:
        return collate(samples)
    except (TypeError, RuntimeError, ValueError, LookupError):
        forms = [form(sample) for sample in samples]
        other = next((place for place, each in enumerate(forms) if each != forms[0]), 0)
        both = f"sample {indices[0]} is {forms[0]}" + (f", and sample {indices[other]} {forms[other]}" if other else "")
        error = UserError(f"data.py: {both}: that cannot be one batch, so make them alike, of tensors or numbers")
        error.speaks = True
        return error
