"""Whatever a checkpoint is given is written as weights_only reads it, or refused before the first step."""

import enum
import io
from collections import Counter, defaultdict, deque, namedtuple
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Package, Render
from tests.support.ranks import error_in, train_on_ranks
from tests.support.training import differences
from tools.rewriting import Rewrite

Point = namedtuple("Point", "x y")  # as owners write it


Mode = enum.Enum("Mode", ["FAST"])
Level = enum.IntEnum("Level", ["HIGH"])


class Named(str):
    __slots__ = ()


class Tagged(Tensor):
    """A tensor of a class that adds no operations."""


VALUES = {
    "numbers of NumPy": ([np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True)], [0.5, 0.5, 3, True]),
    "a long double": (np.longdouble(0.5), 0.5),
    "a text of NumPy": (np.str_("a"), "a"),
    "arrays": (
        [np.arange(3), np.array(2.0), np.arange(3)[::-1]],
        [torch.arange(3), torch.tensor(2.0, dtype=torch.float64), torch.tensor([2, 1, 0])],
    ),
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


def read_again(value: Any) -> Any:
    memory = io.BytesIO()
    torch.save(value, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


@pytest.mark.parametrize("name", VALUES)
def test_what_can_be_plain_is_read_again(name: str, package: Package) -> None:
    value, expected = VALUES[name]
    if expected is None:
        expected = value
    found = read_again(package("runtime.plain").plain(value, "part"))
    assert differences(found, expected) == []
    assert type(found) is type(expected)
    assert getattr(found, "_metadata", None) == getattr(expected, "_metadata", None), "the versions of layers"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: None, "is a function"),
        (Fraction(1, 2), "is a Fraction"),
        (nn.Linear(1, 1), "is a Linear"),
        (np.array([None]), "is a ndarray"),
        (np.datetime64("2026-01-01"), "is a datetime64"),
        (torch.Generator(), "is a Generator"),
        (int, "is a type"),
        (Mode.FAST, "is a Mode"),
        (Level.HIGH, "is a Level"),
        (Point(1, 2), "is a Point"),
        (deque([1], maxlen=3), "is a deque"),
        (range(3), "is a range"),
        (frozenset([1]), "is a frozenset"),
        (Path("a"), "is a PosixPath"),
    ],
)
def test_what_cannot_is_refused_by_its_place(value: Any, words: str, package: Package) -> None:
    with pytest.raises(package("runtime.exits").UserError, match=rf"optimizer/param_groups/0/schedule {words}, which"):
        package("runtime.plain").plain({"param_groups": [{"schedule": value}]}, "optimizer")
    for own in (defaultdict(int), MappingProxyType({}), np.ones(2)):  # a module gets its own types back, or none
        with pytest.raises(package("runtime.exits").UserError, match=r"model/1\._extra_state/seen is a "):
            package("runtime.plain").plain({"1._extra_state": {"seen": own}}, "model")


def test_what_cannot_be_saved_is_refused_before_the_first_step(own_project: Render, tmp_path: Path) -> None:
    project, run_dir = own_project(), tmp_path / "run"
    group = "AdamW([{'params': [*model.parameters()], 'schedule': lambda step: step}])"
    Rewrite("AdamW($$$A)", group, "build_optimizer").apply(project / "ddp_project" / "task.py")
    printed = train_on_ranks(project, run_dir, "--max-steps", "2", code=2)
    said = "error: optimizer/param_groups/0/schedule is a function, which a checkpoint cannot hold: keep"
    assert error_in(printed).startswith(said)
    assert " step " not in "".join(printed)
