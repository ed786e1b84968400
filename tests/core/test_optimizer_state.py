"""State of an optimizer finds its parameters by name, and values that are built otherwise at a resume hold."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import OneCycleLR

from tests.conftest import Package, Render
from tests.support.ranks import train_on_ranks
from tests.support.training import checkpoint, differences

Build = Callable[[nn.Module], Optimizer]


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
        self.kind = package("runtime.optimizer_state").OptimizerState
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
    return {
        name: optimizer.state[each]["exp_avg"] for name, each in model.named_parameters() if each in optimizer.state
    }


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level("INFO")
    return lambda: [record.getMessage() for record in caplog.records]


def test_layers_in_another_order_keep_their_moments(package: Package, logged: Callable[[], list[str]]) -> None:
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


def test_values_that_were_typed_hold_and_others_go_on(package: Package, logged: Callable[[], list[str]]) -> None:
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


def two_groups(model: nn.Module, *decays: float) -> Optimizer:
    return AdamW([{"params": [w], "weight_decay": d} for w, d in zip(model.parameters(), decays, strict=True)])


def test_groups_are_found_by_their_parameters(package: Package) -> None:
    saved = Saved(package, network("a", "b"), lambda model: two_groups(model, 0.1, 0.2))
    saved.state["param_groups"][0]["counter"], saved.state["param_groups"][1]["counter"] = 1, 2
    kept = saved.into(network("b", "a"), lambda model: two_groups(model, 0.2, 0.1)).param_groups
    assert [group["weight_decay"] for group in kept] == [0.2, 0.1]
    one = Saved(package, network("a", "b"), adam)
    split = one.into(network("a", "b"), lambda model: two_groups(model, 0.01, 0.0))
    assert [group["weight_decay"] for group in split.param_groups] == [0.01, 0.0]
    assert len(split.state) == 2


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
    optimizers = package("runtime.update").Optimizers

    def build(model: nn.Module) -> Optimizer:
        built: Optimizer = optimizers(*(AdamW([weight]) for weight in model.parameters()))
        return built

    saved = Saved(package, network("a", "b"), build)
    assert [each["class"] for each in saved.state["optimizers"]] == ["AdamW", "AdamW"]
    other = network("a", "b")
    optimizer: Any = saved.into(other, build)
    for own, before in zip(optimizer.optimizers, saved.optimizer.optimizers, strict=True):  # type: ignore[attr-defined]
        assert differences([*own.state.values()], [*before.state.values()]) == []
    with pytest.raises(package("runtime.exits").UserError, match=r"has 2 optimizers, task\.py builds 1"):
        saved.into(network("a", "b"), adam)


def test_state_of_version_1_is_found_by_place(package: Package, logged: Callable[[], list[str]]) -> None:
    saved = Saved(package, network("a", "b"), adam)
    saved.state = saved.optimizer.state_dict()
    other = network("a", "b")
    optimizer = saved.into(other, lambda model: adam(model, weight_decay=0.5, eps=1e-3), "weight_decay", "lr")
    assert differences(moments(other, optimizer), moments(saved.model, saved.optimizer)) == []
    assert (optimizer.param_groups[0]["weight_decay"], optimizer.param_groups[0]["eps"]) == (0.5, 1e-8)
    assert logged() == ["optimizer group 0: weight_decay 0.5 (was 0.01)"]


def test_a_run_goes_on_with_the_options_that_are_typed(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "22")
    printed = train_on_ranks(
        project(), run_dir, "--max-steps", "24", "--resume", "--weight-decay", "0.5", "--seed", "7"
    )
    assert "optimizer group 0: weight_decay 0.5 (was 0.01)" in printed[0]
    assert checkpoint(run_dir)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5
    again = train_on_ranks(project(), run_dir, "--max-steps", "26", "--resume", "--weight-decay", "0.5", code=2)
    assert "error: rank 0: --seed 0 (was 7) would change the order of samples within an epoch" in "".join(again)
