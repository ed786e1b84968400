"""Values as a checkpoint may hold them: what is written is what weights_only reads."""

import io
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .exits import UserError

NAMED = 10  # names of tensors in a line, at most
READ = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device, torch.Size)


def plain(value: Any, place: str) -> Any:
    """Return a value in plain types and tensors. Raises UserError, which names its place, if none says the same."""
    try:
        if "_extra_state" in place and (isinstance(value, np.ndarray) or is_other_mapping(value)):
            raise TypeError  # set_extra_state() would get another type
        if isinstance(value, Mapping):
            return plain_mapping(value, place)
        if type(value) in (list, tuple, set):
            return type(value)(plain(each, f"{place}/{number}") for number, each in enumerate(value))
        return plain_leaf(value)
    except (TypeError, ValueError) as error:
        found = f"{place} is a {type(value).__name__}, which a checkpoint cannot hold"
        raise UserError(f"{found}: keep numbers, text and tensors there, in lists or dicts") from error


def is_other_mapping(value: Any) -> bool:
    """Return whether it is a mapping that becomes a dict: one with a default, say."""
    return isinstance(value, Mapping) and type(value) not in (dict, OrderedDict, Counter)


def plain_mapping(value: Mapping[Any, Any], place: str) -> dict[Any, Any]:
    """Return a dict. An OrderedDict stays one, with the versions of layers that it has of a model, and so a Counter."""
    items = {plain(key, place): plain(each, f"{place}/{key}") for key, each in value.items()}
    if type(value) is not OrderedDict:
        return Counter(items) if type(value) is Counter else items
    ordered = OrderedDict(items)
    vars(ordered).update(plain(vars(value), place))
    return ordered


def plain_leaf(value: Any) -> Any:
    """Return a value that holds no others. Raises TypeError or ValueError if it is of a kind that would be lost."""
    if type(value) in READ:
        return value if value != b"" else bytearray()  # weights_only reads any bytes but none
    if isinstance(value, Tensor):
        return plain_tensor(value.detach())
    if isinstance(value, Enum):
        raise TypeError
    if isinstance(value, np.ndarray):
        return torch.tensor(value.astype(value.dtype.newbyteorder("=")))
    if isinstance(value, np.generic):
        return value.item() if type(value.item()) in READ else float(value)
    kinds: tuple[Any, ...] = (int, float, complex, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError


def plain_tensor(value: Tensor) -> Tensor:
    """Return the tensor: of a class without operations of its own, as Tensor. Raises TypeError if it is not read."""
    if type(value) is Tensor:
        return value
    if type(value).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return value.as_subclass(Tensor)
    memory = io.BytesIO()
    torch.save(value, memory)
    try:
        torch.load(io.BytesIO(memory.getvalue()), weights_only=True)
    except Exception as error:  # of such a class, anything
        raise TypeError from error
    return value


def reason_of(error: Exception) -> str:
    """Return in one line why torch cannot read a file: without its advice, and without codes for terminals."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    if found := re.search(r"GLOBAL (\S+)", text):
        return f"it holds {found[1]}, and only tensors and plain types are read: save a state_dict() alone"
    if isinstance(error, OSError | EOFError):
        return f"{type(error).__name__} {text}"
    return "torch.load() does not read it with weights_only: it is damaged, or no file of tensors by torch.save()"


def some(names: Collection[str]) -> str:
    """Return the first names, and how many there are if not all are shown."""
    shown = ", ".join(sorted(names)[:NAMED])
    return shown if len(names) <= NAMED else f"{shown}, ... ({len(names)} in all)"
