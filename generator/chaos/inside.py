"""Lets the data of an owner do, in processes that load it, what breaks a loader.

A copy of this file, named sitecustomize, is what Python runs when it starts: it must import nothing but Python's own.
DDP_CHAOS_DATA names a file with a state of data.STATES and the IDs of the processes that it befalls. Once a call was
changed, the state is a line of the file with ".met" at its end.
"""

import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ORDERS = "DDP_CHAOS_DATA"


def install() -> None:
    """Change the data of each process that will load some, here or in a process that is forked."""
    run = BaseProcess.run

    def change_and_run(process: Any) -> None:
        if getattr(process._target, "__name__", "") == "_worker_loop":  # of torch.utils.data, which takes a dataset
            change(of_owner(process._args[1]))
        run(process)

    BaseProcess.run = change_and_run  # type: ignore[assignment, method-assign]


def of_owner(dataset: Any) -> Any:
    """Return the dataset that a project's own ones are wrapped around."""
    while ".runtime." in type(dataset).__module__:
        dataset = dataset.dataset
    return dataset


def change(dataset: Any) -> None:
    """Let a dataset look at its orders, whenever it is asked for samples."""
    kind = type(dataset)
    if method := getattr(kind, "__getitems__", None):
        kind.__getitems__ = obeying(method)
    else:
        kind.__getitem__ = obeying(kind.__getitem__)


def obeying(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a method that loads samples, and does what the orders say."""

    def load(dataset: Any, indices: Any) -> Any:
        state, *befallen = Path(os.environ[ORDERS]).read_text().split() or ["sound"]
        if str(os.getpid()) not in befallen:
            return method(dataset, indices)
        tell(state)
        while state == "stuck":
            time.sleep(1)
        return unsendable(method(dataset, indices))

    return load


def tell(state: str) -> None:
    """Say that this state has changed a call."""
    with open(f"{os.environ[ORDERS]}.met", "a") as file:
        file.write(f"{state}\n")


def unsendable(loaded: Any) -> Any:
    """Return what was loaded with something that cannot be pickled: a function beside it, or the graph of a tensor."""
    if isinstance(loaded, dict):
        return {**loaded, "function": lambda: None}
    if isinstance(loaded, tuple) and not hasattr(loaded, "_fields"):
        return (*loaded, lambda: None)
    return with_graphs(loaded)


def with_graphs(part: Any) -> Any:
    """Return samples whose tensors were computed from weights, which leaves their types and shapes as they are."""
    import torch

    if isinstance(part, torch.Tensor) and part.is_floating_point():
        return part * torch.ones((), requires_grad=True)
    if isinstance(part, dict):
        return {name: with_graphs(each) for name, each in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(with_graphs, part))
    return type(part)(map(with_graphs, part)) if isinstance(part, list | tuple) else part


def run_the_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if os.path.abspath(place) != here])
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    install()
    run_the_next()
