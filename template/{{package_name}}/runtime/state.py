"""What a checkpoint holds: which buffers, the state of optimizers by names, and everything as plain types."""

import io
import logging
import math
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .exits import UserError
from .storage import HashedFile

OF_LAYERS = ("running_mean", "running_var", "num_batches_tracked")  # of torch: their shapes stay
NAMED = 10  # names of tensors in a line, at most
READ = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device, torch.Size)
# Not to be turned on in the middle of a run: they need state from the first step on. SGD can begin late.
NEED_STATE = ("amsgrad", "centered", "momentum")
ADVICE = "--init-from begins a new run with the weights alone"

State = dict[str, Any]


def places_of_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name of each persistent buffer, its module and its name there."""
    for prefix, module in model.named_modules():
        for own in module._buffers:
            if own not in module._non_persistent_buffers_set:
                yield f"{prefix}.{own}" if prefix else own, module, own


def buffers_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Return the persistent buffers by name: running statistics of torch's layers, and others, some yet to come."""
    statistics: dict[str, Tensor] = {}
    others: dict[str, Tensor | None] = {}
    for name, module, own in places_of_buffers(model):
        buffer = module._buffers[own]
        if not (hasattr(module, "track_running_stats") and own in OF_LAYERS):
            others[name] = buffer
        elif buffer is not None:
            statistics[name] = buffer
    return statistics, others


def running_buffers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return where the buffers are that training changes, by their names or by what their layer says of itself."""
    return [
        (module, own)
        for _, module, own in places_of_buffers(model)
        if getattr(module, "track_running_stats", False) or own.startswith(("running_", "num_batches_tracked"))
    ]


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return all persistent buffers by name."""
    statistics, others = buffers_of(model)
    return statistics | {name: buffer for name, buffer in others.items() if buffer is not None}


def fingerprint(buffer: Tensor | None) -> tuple[str, str]:
    """Return dtype and shape, and a digest: both are equal for equal buffers alone."""
    if buffer is None:
        return "", ""
    with HashedFile(Path(os.devnull)) as nowhere:
        torch.save(buffer.detach().cpu().clone(), nowhere)
    return f"{buffer.dtype} {[*buffer.shape]}", nowhere.sha256()


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of the persistent buffers."""
    return {name: [*buffer.shape] for name, buffer in persistent_buffers(model).items()}


def set_buffer(model: nn.Module, name: str, value: Tensor | None) -> None:
    """Set a buffer to a value of any shape; None removes it."""
    buffer = persistent_buffers(model).get(name)
    if buffer is not None and value is not None and buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        prefix, _, own = name.rpartition(".")
        device = next(model.parameters()).device
        model.get_submodule(prefix).register_buffer(own, None if value is None else value.clone().to(device))


def grow_buffers(model: nn.Module, grown: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Give buffers that have grown their saved values, if they have the shapes here from which they grew."""
    shapes = shapes_of(model)
    for name in [name for name, built in grown.items() if shapes.get(name) == built]:
        set_buffer(model, name, saved[name])


def largest_values(model: nn.Module) -> dict[str, float]:
    """Return the largest absolute value of each parameter and persistent buffer that has one; NaN if it has NaN.

    It takes no copy and does not overflow. float8 has none, nor have other layouts.
    """
    tensors = {
        name: tensor.detach()
        for name, tensor in (dict(model.named_parameters()) | persistent_buffers(model)).items()
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.numel()
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.itemsize > 1)
    }
    if not tensors:
        return {}
    largest = torch.stack([*torch._foreach_norm([*tensors.values()], math.inf)])
    return dict(zip(tensors, largest.tolist(), strict=True))


def ruined(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return what is worse than before: inf than what was finite, and NaN than a mask of -inf."""

    def badness(value: float) -> int:
        return 2 * math.isnan(value) + math.isinf(value)

    return [name for name, was in before.items() if badness(now.get(name, 0.0)) > badness(was)]


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


def names_of(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names of each parameter of an optimizer: several if it is tied, a number if the model lacks it."""
    names: dict[Tensor, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [names.get(weight, [f"#{place}"]) for place, weight in enumerate(weights)]


def values_of(group: State) -> State:
    """Return what a group says of its parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


class OptimizerState:
    """One optimizer or several as a part of a checkpoint. Make it when the optimizer is built: it keeps its groups."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.several = hasattr(optimizer, "optimizers")  # class Optimizers
        self.parts = [NamedState(model, each) for each in getattr(optimizer, "optimizers", [optimizer])]

    def state_dict(self) -> State:
        """Return the state of each optimizer, by the names of its parameters, its class and its groups as built."""
        states = [part.state_dict() for part in self.parts]
        return {"optimizers": states} if self.several else states[0]

    def load_state_dict(self, state: State, changed: Collection[str] = ()) -> None:
        """Go on from saved state; of version 1, which does not say what was built, with the options that have changed.

        Raises UserError if it is the state of other optimizers.
        """
        states = state.get("optimizers", [state])
        if len(states) != len(self.parts):
            raise UserError(f"the checkpoint has {len(states)} optimizers, task.py builds {len(self.parts)}: {ADVICE}")
        for part, saved in zip(self.parts, states, strict=True):
            part.load_state_dict(saved, changed)


class NamedState:
    """One optimizer, the names of its parameters, and its groups as they were built."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.kind = type(optimizer).__qualname__
        self.names = names_of(model, optimizer)  # as long as it steps the model's own, and no copies
        groups = enumerate(map(values_of, optimizer.param_groups))
        built = [plain(values, f"optimizer/param_groups/{number}") for number, values in groups]
        self.built = [{key: v.tolist() if isinstance(v, Tensor) else v for key, v in group.items()} for group in built]

    def state_dict(self) -> State:
        """Return its state; as it is, if it is not packed as torch does it."""
        state = self.optimizer.state_dict()
        self.names += names_of(self.model, self.optimizer)[len(self.names) :]  # of groups that were added since
        return self._by_name(state) | {"class": self.kind, "built": self.built} if "param_groups" in state else state

    def load_state_dict(self, saved: State, changed: Collection[str]) -> None:
        """Go on from saved state."""
        groups = saved.get("param_groups", [])
        if "class" not in saved and sum(len(group["params"]) for group in groups) == len(self.names):
            built = [{key: value for key, value in group.items() if key in changed and key != "lr"} for group in groups]
            saved = self._by_name(saved) | {"class": self.kind, "built": built}
        self.optimizer.load_state_dict(self._by_place(saved) if "class" in saved else saved)

    def _by_name(self, state: State) -> State:
        """Return a state as torch packs it, with names for the places of parameters."""
        name, groups = {place: names[0] for place, names in enumerate(self.names)}, state["param_groups"]
        groups = [group | {"params": [name.get(each, each) for each in group["params"]]} for group in groups]
        named = {name.get(key, key): each for key, each in state["state"].items()}
        return state | {"state": named, "param_groups": groups}

    def _by_place(self, saved: State) -> State:
        """Return a state by name as torch packs it."""
        if saved["class"] != self.kind:
            raise UserError(f"the checkpoint's optimizer is {saved['class']}, task.py builds {self.kind}: {ADVICE}")
        group_of = {name: number for number, group in enumerate(saved["param_groups"]) for name in group["params"]}
        found = [next((name for name in names if name in group_of), None) for names in self.names]
        places = {name: place for place, name in enumerate(found) if name is not None}
        groups: list[State] = []
        first = 0
        for number, group in enumerate(self.optimizer.param_groups):
            here = range(first, first := first + len(group["params"]))
            sources = {group_of[name] for name in found[here.start : here.stop] if name is not None}
            groups.append({**self._values(number, saved, sources), "params": [*here]})
        for names, what in (
            ({names[0] for names, name in zip(self.names, found, strict=True) if name is None}, "begin without state"),
            (group_of.keys() - places.keys(), "are trained no more, and their state is left out"),
        ):
            if names:
                logging.info("optimizer: %d parameters %s: %s", len(names), what, some(names))
        kept = [(key, each) for key, each in saved["state"].items() if key in places or key not in group_of]
        own = {key: value for key, value in saved.items() if key not in ("class", "built")}
        return own | {"state": {places.get(key, key): each for key, each in kept}, "param_groups": groups}

    def _values(self, number: int, saved: State, sources: set[int]) -> State:
        """Return the values of a group as they are saved, but for those that are built otherwise now than then."""
        own, built = values_of(self.optimizer.param_groups[number]), self.built[number]
        then = dict(enumerate(saved["built"]))  # none of a group that was added later
        found = [(values_of(saved["param_groups"][source]), then.get(source, {})) for source in sources]
        if number in sources and len(saved["param_groups"]) == len(self.built):  # others have come to this group
            found = [found[[*sources].index(number)]]
        if not found:
            return own
        values, before = found[0]
        if any(repr(each) != repr(found[0]) for each in found):
            raise UserError(f"group {number} of the optimizer joins groups of the checkpoint that differ: {ADVICE}")
        changed = {key: own[key] for key, value in built.items() if key in before and value != before[key]}
        for key, value in changed.items():
            if key in NEED_STATE and value and not before[key] and saved["state"] and self.kind != "SGD":
                raise UserError(f"the optimizer cannot begin with {key} in the middle of a run: {ADVICE}")
            logging.info("optimizer group %d: %s %s (was %s)", number, key, value, before[key])
        return own | values | changed
