"""The state of an optimizer by the names of parameters, and what options that are typed at a resume change in it."""

import logging
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .exits import UserError
from .plain import plain, some

# Not to be turned on in the middle of a run: they need state from the first step on. SGD can begin late.
NEED_STATE = ("amsgrad", "centered", "momentum")
ADVICE = "--init-from begins a new run with the weights alone"

State = dict[str, Any]


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
