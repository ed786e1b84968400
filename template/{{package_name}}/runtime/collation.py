"""What a batch is made of: samples of the owner's dataset, whole, in one piece, and with a name if they fail."""

import hashlib
import operator
import random
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pprint import pformat
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate, get_worker_info

from .. import data
from .exits import UserError, in_one_line, is_out_of_memory
from .sampling import Batch

TOLD: dict[int, tuple[Any, int]] = {}  # by id, datasets that have set_epoch(), and the epoch that they were told
# By what an error of making a batch or of sending it says: what would help.
REMEDIES = {
    "unable to allocate shared memory|No space left on device": (
        "/dev/shm is full: give it more, as docker run --shm-size=8g does, or give --workers 0"
    ),
    "Too many open files|items of ancdata": "ulimit -n 65536 lets a process open more files, or give --workers 0",
    "strides? .*negative": "a flipped array needs .copy()",
    "[Oo]verflow|too (big|large) to convert": "numbers must fit into int64",
    "require(s_|s )grad": "a tensor that needs gradients needs .detach()",
    "pickle": "leave out what cannot be pickled, or give --workers 0",
    "default_collate: batch must contain": "return tensors, numbers or text from __getitem__()",
}


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor], *method: Any) -> Any:
    """Return a batch with a function applied to each of its tensors, in tuples, lists, dicts, dataclasses and the like.

    An object that has the method, a name with arguments, is asked for what that returns: so graphs move themselves.
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if method and callable(getattr(type(batch), method[0], None)):  # a field may have the same name
        changed = getattr(batch, method[0])(*method[1:])
        return batch if changed is None else changed
    if isinstance(batch, Mapping):
        named = {name: map_tensors(part, function, *method) for name, part in batch.items()}
        return like(batch, named) if any(named[name] is not batch[name] for name in named) else batch
    if names := attributes(batch):
        return with_attributes(batch, {name: map_tensors(getattr(batch, name), function, *method) for name in names})
    if is_sequence(batch):
        before = [*batch]
        parts = [map_tensors(part, function, *method) for part in before]
        return like(batch, parts) if any(map(operator.is_not, parts, before)) else batch
    return batch


def collate(samples: Sequence[Any]) -> Any:
    """Make a batch of samples, as PyTorch's default_collate() does it, of dataclasses too."""
    first = samples[0]
    if isinstance(first, Mapping):
        return like(first, {name: collate([sample[name] for sample in samples]) for name in first})
    if names := attributes(first):
        return with_attributes(first, {name: collate([getattr(each, name) for each in samples]) for name in names})
    if is_sequence(first):
        columns = [collate(column) for column in zip(*samples, strict=True)]
        return columns if isinstance(first, torch.Size) else like(first, columns)
    return default_collate(samples)  # type: ignore[arg-type]  # also a tuple, so that text stays in one


def is_sequence(value: Any) -> bool:
    """Return whether it has parts that may be tensors: text and bytes have none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def attributes(value: Any) -> list[str]:
    """Return the names of what an object of a dataclass, or of a class of attrs, holds; of others, none."""
    known = fields(value) if is_dataclass(value) else getattr(type(value), "__attrs_attrs__", ())
    if not known or isinstance(value, type):
        return []
    names = dict.fromkeys([*(each.name for each in known), *getattr(value, "__dict__", ())])
    cached = {name for name in names if isinstance(getattr(type(value), name, None), cached_property)}
    return [name for name in names if name not in cached and hasattr(value, name)]


def with_attributes(value: Any, parts: dict[str, Any]) -> Any:
    """Return a copy of an object with other attributes, frozen or not; __init__() is not called."""
    changed = copy(value)
    getattr(changed, "__dict__", {}).clear()  # also of cached properties
    for name, part in parts.items():
        object.__setattr__(changed, name, part)
    return changed


def like(original: Any, parts: dict[Any, Any] | list[Any]) -> Any:
    """Return the parts as a mapping or sequence of the original's type, or as they are if it cannot be made."""
    with suppress(Exception):
        if isinstance(original, MutableMapping):  # which may have further properties, as a defaultdict has
            changed = copy(original)
            changed.clear()  # to update a Counter adds to it
            changed.update(parts)
            return changed
    with suppress(Exception):
        return original._make(parts) if hasattr(original, "_make") else type(original)(parts)
    return parts


def form(value: Any) -> str:
    """Return what a sample is: its types and, of its tensors and arrays, dtype and shape."""
    if isinstance(value, np.ndarray) or (isinstance(value, Tensor) and not value.is_nested):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {form(part)}" for name, part in value.items()) + "}"
    if names := attributes(value):
        return f"{type(value).__name__} of {form({name: getattr(value, name) for name in names})}"
    if is_sequence(value):
        return "(" + ", ".join(map(form, value)) + ")"
    return type(value).__name__


def digest(batch: Any) -> str:
    """Return what is the same for samples that are the same, also on nodes that round differently."""

    def summary(tensor: Tensor) -> Any:
        numbers, digits = tensor.detach().double().flatten(), 3 if tensor.is_floating_point() else 9
        share = torch.cos(torch.arange(len(numbers))).double() @ numbers / numbers.norm()
        return f"{tensor.dtype} {tuple(tensor.shape)} {numbers.norm():.{digits}g} {share:.{digits}f}"

    text = re.sub("0x[0-9a-f]+", "", pformat(map_tensors(batch, summary), width=1))  # where objects lie; it sorts sets
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def can_be_pinned(tensor: Tensor) -> bool:
    """Return whether it can lie where a GPU reads it without waiting: not if it is sparse, or on a GPU already."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


class PinnedBatch:
    """A batch as PyTorch's loader takes it, which pins what it knows: tuples and dicts, but no dataclasses."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch  # or the error that the rank must raise

    def pin_memory(self) -> "PinnedBatch":
        """Copy it to memory from which a GPU can read without waiting."""
        if isinstance(self.batch, Exception):
            return self
        pin = map_tensors(self.batch, lambda each: each.pin_memory() if can_be_pinned(each) else each, "pin_memory")
        return PinnedBatch(pin)


class Sent:
    """A batch on its way from a worker process, which the rank gets as PinnedBatch.

    Its bytes are made at once: a queue would make them in a thread, where an error is lost and the batch with it.
    """

    def __init__(self, batch: Any, indices: Sequence[int]) -> None:
        try:
            self.bytes = bytes(ForkingPickler.dumps(batch))  # torch lets tensors share their memory
        except Exception as error:
            what = f"data.py: the batch of {numbered(indices)} cannot leave its worker process"
            self.bytes = bytes(ForkingPickler.dumps(explained(error, what)))

    def __reduce__(self) -> tuple[Callable[[bytes], PinnedBatch], tuple[bytes]]:
        return received, (self.bytes,)


def received(sent: bytes) -> PinnedBatch:
    """Return what a worker process has sent, or the error that keeps it from coming."""
    try:
        return PinnedBatch(ForkingPickler.loads(sent))
    except (ConnectionError, FileNotFoundError, EOFError) as error:  # the process that has the memory is gone
        return PinnedBatch(error)
    except Exception as error:
        return PinnedBatch(explained(error, "data.py: a batch of a worker process cannot be received"))


class BatchDataset(Dataset[Any]):
    """Loads whole batches, with the random generators seeded for each.

    So augmentation is the same after a resume and with any number of workers, and dropout is not affected. A dataset
    with set_epoch(epoch) is told each epoch of the training, also where a worker has it, and 0 for an evaluation. What
    it draws there is also the same on all ranks.
    """

    latest: "ClassVar[BatchDataset | None]" = None  # that has loaded a batch: sets may share one that has set_epoch()

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None, *, seed: int = 0) -> None:
        self.dataset = dataset
        self.collate = collate
        self.seed = seed
        self.epoch: int | None = None

    def __getitem__(self, batch: Batch) -> Any:
        if batch.epoch != self.epoch or BatchDataset.latest is not self:
            with same_generators_after():
                seed_batch(self.seed, batch.epoch or 0)
                set_epoch(self.dataset, batch.epoch or 0)
            BatchDataset.latest, self.epoch = self, batch.epoch
        before = torch.get_rng_state()
        in_worker = get_worker_info() is not None
        seed_batch(*batch.rng_key, torch_alone=not in_worker)  # without workers, the others are those of the rank
        try:
            whole = self._load(batch)
        except UserError as error:
            error.should_report = True  # no other rank has this sample
            whole = error  # for the rank to raise: a loader would make its traceback part of the message
        finally:
            torch.set_rng_state(before)
        return Sent(whole, batch.indices) if in_worker else PinnedBatch(whole)

    def _load(self, batch: Any) -> Any:
        indices = batch.indices
        if hasattr(self.dataset, "__getitems__"):  # one call for 16 samples: 20 us instead of 47
            fetched = loaded(self.dataset.__getitems__, indices)
        else:
            fetched = [loaded(self.dataset.__getitem__, index) for index in indices]
        if fetched is None or (isinstance(fetched, list) and len(fetched) != len(indices)):
            found = "None" if fetched is None else f"a list of {len(fetched)} for {len(indices)} indices"
            raise UserError(f"data.py: __getitems__ returned {found}: return a tuple or dict for a whole batch")
        if not isinstance(fetched, list):
            if self.collate:
                found = f"__getitems__() of {type(self.dataset).__name__} returns whole batches"
                raise UserError(f"data.py: {found}, so Data(collate=...) gets no samples: let it return a list of them")
            return fetched
        return self._collated(fetched, indices)

    def _collated(self, samples: list[Any], indices: list[int]) -> Any:
        own = self.collate
        return loaded(lambda _: own(samples), indices) if own else collated(samples, indices)


def seed_batch(*key: int, torch_alone: bool = False) -> None:
    """Seed torch on the CPU by some numbers and, unless torch_alone, Python and NumPy too."""
    # torch.manual_seed() would seed the GPUs too, which takes 100 times as long.
    torch.default_generator.manual_seed(hash(key))
    if not torch_alone:
        random.seed(hash(key))
        np.random.seed(hash(key) % 2**32)


@contextmanager
def same_generators_after() -> Iterator[None]:
    """Inside, the generators of the CPU may be seeded; afterwards they continue as before."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset which epoch of the training begins, and the datasets that it is made of: once each epoch."""
    if hasattr(dataset, "set_epoch") and TOLD.get(id(dataset), (None, None))[1] != epoch:
        dataset.set_epoch(epoch)
        TOLD[id(dataset)] = dataset, epoch
    inner = getattr(dataset, "datasets", ()) if isinstance(dataset, ConcatDataset) else ()
    for each in (dataset.dataset,) if isinstance(dataset, Subset) else inner:
        set_epoch(each, epoch)


def loaded(load: Callable[[Any], Any], indices: Any) -> Any:
    """Return what a dataset does. An error in the owner's code also names the sample and the line."""
    try:
        return load(indices)
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # a worker that left would say nothing
        own = Path(data.__file__).parent
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        place = next((place for place in places[::-1] if Path(place).parent == own), places[-1])
        what = f"one of {numbered(indices)}" if isinstance(indices, list) else f"sample {indices}"
        raise RuntimeError(f"{what} cannot be loaded: {in_one_line(error)} (at {place})") from error


def collated(samples: Sequence[Any], indices: Sequence[int]) -> Any:
    """Return a batch of samples. Raises UserError, which names two that are not alike, or says what else is wrong."""
    try:
        return collate(samples)
    except Exception as error:
        forms = [form(sample) for sample in samples]
        other = next((place for place, each in enumerate(forms) if each != forms[0]), 0)
        first = f"data.py: sample {indices[0]} is {forms[0]}"
        if other and not remedy(error):
            both = f"{first}, and sample {indices[other]} {forms[other]}"
            raise UserError(f"{both}: that cannot be one batch: make them alike, or give Data(collate=...)") from error
        raise explained(error, f"{first}: {numbered(indices)} cannot be one batch") from error


def explained(error: Exception, what: str) -> Exception:
    """Return the error for the user, with what would help; want of memory stays what it is."""
    if is_out_of_memory(error):
        return error
    explanation = UserError(f"{what}: {in_one_line(error)}" + (f"; {help}" if (help := remedy(error)) else ""))
    explanation.should_report = True  # of one rank
    return explanation


def remedy(error: Exception) -> str | None:
    """Return what would help, if that is known."""
    return next((help for words, help in REMEDIES.items() if re.search(words, f"{error!r} {error}")), None)


def numbered(indices: Sequence[int]) -> str:
    """Return samples by their numbers, the first of them."""
    return f"samples {', '.join(map(str, indices[:5]))}{' ...' if len(indices) > 5 else ''}"
