"""Lets the data of an owner do, in processes that load it, what breaks a loader.

A copy of this file, named sitecustomize, is what Python runs when it starts: it must import nothing but Python's own.
DDP_CHAOS_DATA names a file with a state ("sound", "unsendable": what it returns cannot be pickled, "stuck": it never
returns) and the IDs of the processes that it befalls. Once a call was changed, the state is a line of the file with
".met" at its end.
"""

import operator
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
    """Return the owner's dataset, or a stream of it, inside the wrappers of the project's runtime."""
    while ".runtime." in type(dataset).__module__ and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def change(dataset: Any) -> None:
    """Make a dataset read its orders whenever it loads samples."""
    kind = type(dataset)
    if not hasattr(kind, "__getitem__"):  # a stream
        decode = dataset.decode or (lambda sample: sample)
        dataset.decode = partial(obeying(lambda _, sample: decode(sample), of_many=False), dataset)
    elif method := getattr(kind, "__getitems__", None):
        kind.__getitems__ = obeying(method, of_many=True)
    else:
        kind.__getitem__ = obeying(kind.__getitem__, of_many=False)


def obeying(method: Callable[[Any, Any], Any], *, of_many: bool) -> Callable[[Any, Any], Any]:
    """Return a method that loads one sample or many, and follows the orders."""

    def load(dataset: Any, indices: Any) -> Any:
        state, *affected = orders() or ["sound"]
        if str(os.getpid()) not in affected:
            return method(dataset, indices)
        tell(state)
        while state == "stuck":
            time.sleep(1)
        loaded = method(dataset, indices)
        return unsendable(loaded, is_batch=of_many and not isinstance(loaded, list))

    return load


def orders() -> list[str]:
    """Return the words of the orders, or [] if this process has too many open files."""
    with suppress(OSError):
        return Path(os.environ[ORDERS]).read_text().split()
    return []


def tell(state: str) -> None:
    with open(f"{os.environ[ORDERS]}.met", "a") as file:
        file.write(f"{state}\n")


def unsendable(loaded: Any, *, is_batch: bool) -> Any:
    """Make samples unpicklable: add a graph to each tensor; to a whole batch, or without tensors, add a function."""
    changed = loaded if is_batch else with_graphs(loaded)
    if changed is not loaded:
        return changed
    if isinstance(loaded, dict):
        return {**loaded, "function": lambda: None}
    return (*(loaded if isinstance(loaded, tuple) else (loaded,)), lambda: None)


def with_graphs(part: Any) -> Any:
    """Return tensors of the same types and shapes with a graph, as if computed from weights; other values as is."""
    import torch

    if isinstance(part, torch.Tensor) and part.is_floating_point():
        return part * torch.ones((), requires_grad=True)
    if isinstance(part, dict):
        changed = {name: with_graphs(each) for name, each in part.items()}
        return changed if any(changed[name] is not part[name] for name in part) else part
    if isinstance(part, list | tuple):
        parts = [*map(with_graphs, part)]
        if all(map(operator.is_, parts, part)):
            return part
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


if __name__ == "sitecustomize":
    install()
