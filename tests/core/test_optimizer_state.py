"""An optimizer finds its state by names; what a checkpoint is given is written as weights_only reads it, or refused."""

import copy
import enum
from collections import Counter, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import OneCycleLR

from tests.conftest import Logged, Package, Render
from tests.support.ranks import error_in, train_on_ranks
from tests.support.training import checkpoint, differences
from tools.rewriting import Rewrite

Build = Callable[[nn.Module], Optimizer]
Point = namedtuple("Point", "x y")  # as owners write it
Mode = enum.Enum("Mode", ["FAST"])
Level = enum.IntEnum("Level", ["HIGH"])
NOT_PLAIN = [
    (lambda: None, "is a function"),
    (nn.Linear(1, 1), "is a Linear"),
    (np.array([None]), "is a ndarray"),
    (np.datetime64("2026-01-01"), "is a datetime64"),
    (int, "is a type"),
    (Mode.FAST, "is a Mode"),
    (Level.HIGH, "is a Level"),
    (Point(1, 2), "is a Point"),
    (deque([1], maxlen=3), "is a deque"),
    (frozenset([1]), "is a frozenset"),
    (Path("a"), "is a PosixPath"),
]


def network(*names: str) -> nn.Module:
    return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})


def stepped(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    """Take some steps, in which each parameter has gradients of its own."""
    for _ in range(steps):
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.grad = torch.full_like(weight, float(sum(map(ord, name))))
        optimizer.step()


class Saved:
    """Saves an optimizer after some steps, and loads what was saved into another one."""

    def __init__(self, package: Package, model: nn.Module, build: Build) -> None:
        self.kind = package("runtime.state").OptimizerState
        self.model, self.optimizer = model, build(model)
        part = self.kind(model, self.optimizer)
        stepped(model, self.optimizer)
        self.state = part.state_dict()

    def into(self, model: nn.Module, build: Build, *changed: str) -> Optimizer:
        optimizer = build(model)
        self.kind(model, optimizer).load_state_dict(copy.deepcopy(self.state), {*changed})
        return optimizer


def adam(model: nn.Module, **options: Any) -> Optimizer:
    return AdamW([weight for weight in model.parameters() if weight.requires_grad], **options)


def moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    states = optimizer.state
    return {name: states[each]["exp_avg"] for name, each in model.named_parameters() if each in states}


def test_layers_in_another_order_keep_their_moments(package: Package, logged: Logged) -> None:
    """Those that are frozen or new are named."""
    saved = Saved(package, network("a", "b"), adam)
    other = network("new", "b", "a")
    other.get_submodule("a").requires_grad_(False)
    optimizer = saved.into(other, adam)
    assert moments(other, optimizer).keys() == {"b.weight"}
    assert torch.equal(moments(other, optimizer)["b.weight"], moments(saved.model, saved.optimizer)["b.weight"])
    assert logged() == [
        "optimizer: 1 parameters begin without state: new.weight",
        "optimizer: 1 parameters are trained no more, and their state is left out: a.weight",
    ]
    stepped(other, optimizer)


def test_tied_weights_are_found_by_either_name(package: Package) -> None:
    model, other = network("a", "b"), network("b", "a")
    for each in (model, other):
        each.get_submodule("a").weight = each.get_submodule("b").weight
    saved = Saved(package, model, adam)
    assert [*saved.state["state"]] == ["a.weight"]
    optimizer = saved.into(other, adam)
    (own,), (before,) = moments(other, optimizer).values(), moments(model, saved.optimizer).values()
    assert torch.equal(own, before)


def cycle(model: nn.Module) -> Optimizer:
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
    return optimizer


def test_values_that_were_typed_hold_and_others_go_on(package: Package, logged: Logged) -> None:
    saved = Saved(package, network("a"), lambda model: adam(model, weight_decay=0.01, betas=(0.9, 0.99)))
    saved.state["param_groups"][0] |= {"betas": (0.85, 0.99), "counter": 3, "lr": 0.5}  # as a schedule leaves them
    group = saved.into(network("a"), lambda model: adam(model, weight_decay=0.5, betas=(0.9, 0.99))).param_groups[0]
    assert (group["weight_decay"], group["betas"], group["counter"], group["lr"]) == (0.5, (0.85, 0.99), 3, 0.5)
    assert logged() == ["optimizer group 0: weight_decay 0.5 (was 0.01)"]
    group = saved.into(network("a"), lambda model: adam(model, weight_decay=0.01, betas=(0.8, 0.99))).param_groups[0]
    assert (group["weight_decay"], group["betas"]) == (0.01, (0.8, 0.99))
    saved = Saved(package, network("a"), cycle)
    saved.state["param_groups"][0]["momentum"] = 0.87
    assert saved.into(network("a"), cycle).param_groups[0]["momentum"] == 0.87


class Master(SGD):
    """It steps weights of bfloat16, and keeps float32 ones and the number of its steps."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state.setdefault("master", weight.detach().float())
            state.setdefault("count", torch.tensor(254)).add_(1)
            state["master"].sub_(1e-4)


def test_values_have_the_dtype_that_the_optimizer_gave_them(package: Package) -> None:
    """Torch casts those of each weight to its dtype: a count of 257 would be 256."""

    def build(model: nn.Module) -> Optimizer:
        return Master(model.to(torch.bfloat16).parameters(), lr=0.1)

    saved = Saved(package, network("a"), build)
    optimizer = saved.into(network("a"), build)
    assert differences([*optimizer.state.values()], [*saved.optimizer.state.values()]) == []
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {
        torch.float32,
        torch.int64,
    }
    of_float32 = Saved(package, network("a"), adam).into(network("a").to(torch.bfloat16), adam)
    assert {state["exp_avg"].dtype for state in of_float32.state.values()} == {torch.bfloat16}, "as torch does it"


def test_a_value_that_is_built_no_more_is_gone(package: Package, logged: Logged) -> None:
    def scaled(model: nn.Module) -> Optimizer:
        return AdamW([{"params": model.parameters(), "lr_scale": 0.1}])

    saved = Saved(package, network("a"), scaled)
    assert "lr_scale" not in saved.into(network("a"), adam).param_groups[0]
    assert logged() == ["optimizer group 0: no lr_scale (was 0.1)"]


def two_groups(model: nn.Module, *decays: float) -> Optimizer:
    return AdamW([{"params": [w], "weight_decay": d} for w, d in zip(model.parameters(), decays, strict=True)])


def test_groups_are_found_by_their_parameters(package: Package) -> None:
    saved = Saved(package, network("a", "b"), lambda model: two_groups(model, 0.1, 0.2))
    saved.state["param_groups"][0]["counter"], saved.state["param_groups"][1]["counter"] = 1, 2
    kept = saved.into(network("b", "a"), lambda model: two_groups(model, 0.2, 0.1)).param_groups
    assert [group["weight_decay"] for group in kept] == [0.2, 0.1]
    split = Saved(package, network("a", "b"), adam).into(network("a", "b"), lambda model: two_groups(model, 0.01, 0.0))
    assert ([group["weight_decay"] for group in split.param_groups], len(split.state)) == ([0.01, 0.0], 2)


def rmsprop(model: nn.Module, **options: Any) -> Optimizer:
    return RMSprop(model.parameters(), **options)


REFUSED: list[tuple[Build, Build, str]] = [
    (adam, rmsprop, "optimizer is AdamW, task.py builds RMSprop: --init-from"),
    (adam, lambda model: Adam(model.parameters()), "optimizer is AdamW, task.py builds Adam"),
    (adam, lambda model: adam(model, amsgrad=True), "cannot begin with amsgrad in the middle of a run"),
    (rmsprop, lambda model: rmsprop(model, momentum=0.9), "cannot begin with momentum"),
    (lambda model: two_groups(model, 0.1, 0.2), adam, "joins groups of the checkpoint that differ"),
]


@pytest.mark.parametrize(("before", "now", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_go_on_is_refused_in_one_line(before: Build, now: Build, words: str, package: Package) -> None:
    saved = Saved(package, network("a", "b"), before)
    with pytest.raises(package("runtime.exits").UserError, match=words):
        saved.into(network("a", "b"), now)


def test_several_optimizers_go_on_each_by_names(package: Package) -> None:
    optimizers = package("runtime.optimizer_step").Optimizers

    def build(model: nn.Module) -> Any:
        return optimizers(*(AdamW([weight]) for weight in model.parameters()))

    scheduled = build(network("a", "b"))
    OneCycleLR(scheduled, max_lr=1.0, total_steps=4)
    assert {group["max_lr"] for group in scheduled.param_groups} == {1.0}
    saved = Saved(package, network("a", "b"), build)
    assert [each["class"] for each in saved.state["optimizers"]] == ["AdamW", "AdamW"]
    other = network("a", "b")
    optimizer: Any = saved.into(other, build)
    for own, before in zip(optimizer.optimizers, saved.optimizer.optimizers, strict=True):  # type: ignore[attr-defined]
        assert differences([*own.state.values()], [*before.state.values()]) == []
    with pytest.raises(package("runtime.exits").UserError, match=r"has 2 optimizers, task\.py builds 1"):
        saved.into(network("a", "b"), adam)


def test_a_run_goes_on_with_the_options_that_are_typed(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "22")
    options = ("--resume", "--weight-decay", "0.5", "--max-steps")
    printed = train_on_ranks(project(), run_dir, *options, "24", "--seed", "7")
    assert "optimizer group 0: weight_decay 0.5 (was 0.01)" in printed[0]
    assert checkpoint(run_dir)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5
    again = train_on_ranks(project(), run_dir, *options, "26", code=2)
    assert "error: rank 0: --seed 0 (was 7) would change the order of samples within an epoch" in "".join(again)


class Named(str):
    __slots__ = ()


class Tagged(Tensor):
    """A tensor of a class that adds no operations."""


VALUES = {
    "numbers of NumPy": ([np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True)], [0.5, 0.5, 3, True]),
    "a long double": (np.longdouble(0.5), 0.5),
    "a text of NumPy": (np.str_("a"), "a"),
    "arrays": ([np.arange(3), np.arange(3)[::-1]], [torch.arange(3), torch.tensor([2, 1, 0])]),
    "an array of no dimension": (np.array(2.0), torch.tensor(2.0, dtype=torch.float64)),
    "an array of another machine": (np.arange(3, dtype=">f4"), torch.tensor([0.0, 1, 2])),
    "a text of another class": (Named("a"), "a"),
    "a set": ({1, np.int8(2)}, {1, 2}),
    "dicts": ([defaultdict(list, a=[1]), MappingProxyType({"b": 2})], [{"a": [1]}, {"b": 2}]),
    "a key": ({np.int64(1): 2}, {1: 2}),
    "bytes": ([b"ab", b""], [b"ab", bytearray()]),
    "a counter": (Counter("aab"), Counter("aab")),
    "plain": ([None, True, 1, 1.5, 1j, "a", (1,), torch.Size([2]), torch.float32], None),
    "a parameter": (nn.Parameter(torch.ones(2)), torch.ones(2)),
    "a state_dict": (nn.BatchNorm1d(2).state_dict(), None),
    "a tensor of another class": (torch.ones(2).as_subclass(Tagged), torch.ones(2)),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_can_be_plain_is_read_again(name: str, package: Package, tmp_path: Path) -> None:
    value, expected = VALUES[name]
    expected = value if expected is None else expected
    torch.save(package("runtime.state").plain(value, "part"), tmp_path / "saved.pt")
    found = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert differences(found, expected) == []
    assert type(found) is type(expected)
    assert getattr(found, "_metadata", None) == getattr(expected, "_metadata", None), "the versions of layers"


@pytest.mark.parametrize(("value", "words"), NOT_PLAIN)
def test_what_cannot_is_refused_by_its_place(value: Any, words: str, package: Package) -> None:
    with pytest.raises(package("runtime.exits").UserError, match=rf"optimizer/param_groups/0/schedule {words}, which"):
        package("runtime.state").plain({"param_groups": [{"schedule": value}]}, "optimizer")
    for own in (defaultdict(int, a=1), MappingProxyType({"a": 1}), np.ones(2)):  # a module gets its types back
        with pytest.raises(package("runtime.exits").UserError, match=r"model/1\._extra_state/seen is a "):
            package("runtime.state").plain({"1._extra_state": {"seen": own}}, "model")


def test_what_cannot_be_saved_is_refused_before_the_first_step(own_project: Render, tmp_path: Path) -> None:
    project, run_dir = own_project(), tmp_path / "run"
    group = "AdamW([{'params': [*model.parameters()], 'schedule': lambda step: step}])"
    Rewrite("AdamW($$$A)", group, "build_optimizer").apply(project / "ddp_project" / "task.py")
    printed = train_on_ranks(project, run_dir, "--max-steps", "2", code=2)
    said = "error: optimizer/param_groups/0/schedule is a function, which a checkpoint cannot hold: keep"
    assert error_in(printed).startswith(said)
    assert " step " not in "".join(printed)
