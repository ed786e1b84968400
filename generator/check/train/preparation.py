"""Prepares the process that ranks are forked from, once, when it is imported.

It imports the modules that its parent names in a file. It uses libraries once, so that they import their parts and
compile kernels. It cuts the data of programs, so that an epoch takes few steps. None of this starts a thread.
"""

import functools
import gc
import importlib
import io
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn
from torch.utils.data import Subset

from generator.check.train.compiled import keep_compiled
from generator.check.train.rank import ALL_DATA, MODULES

FIRST = (89, 22)  # samples that are left, to train and to evaluate on


def import_what_is_named() -> None:
    """Wait for the file, and import what it names; end where the parent has gone."""
    file, parent = Path(os.environ[MODULES]), os.getppid()
    while not file.exists():
        if os.getppid() != parent:
            sys.exit()
        time.sleep(0.01)
    for name in file.read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)


@dataclass(frozen=True)
class Options:
    number: int = 1
    path: str | None = None


def rehearse() -> None:
    """Read options, take a step of training, evaluate, save and load."""
    tyro.cli(Options, args=["--number", "2"], description="Rehearse.")
    torch.use_deterministic_algorithms(False)
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    images, labels = torch.zeros(24, 1, 8, 8), torch.zeros(24, dtype=torch.long)
    for dtype in (torch.float32, torch.float16):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()
    with torch.inference_mode():
        network.eval()(images)
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)


def cut_data() -> None:
    """Change what load_data() returns in every module `data` that is imported from here on."""
    if os.environ.get(ALL_DATA) == "1":
        return
    execute = SourceFileLoader.exec_module

    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        execute(self, module)
        if module.__name__.endswith(".data") and "load_data" in vars(module):
            vars(module)["load_data"] = first_part(vars(module)["load_data"])

    SourceFileLoader.exec_module = exec_module  # type: ignore[assignment, method-assign]


class FirstSamples(Subset[Any]):
    """The first samples of a dataset, with all else that it has."""

    def __init__(self, dataset: Any, number: int) -> None:
        super().__init__(dataset, range(min(number, len(dataset))))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


def first_part(load_data: Any) -> Any:
    """Wrap a function that returns two datasets, or Data: of each set its first samples remain."""

    def first(sets: Any, number: int) -> Any:
        if isinstance(sets, dict):
            return {name: FirstSamples(each, number) for name, each in sets.items()}
        return sets and FirstSamples(sets, number)

    @functools.wraps(load_data)
    def load_part(*options: Any) -> Any:
        loaded, (training, others) = load_data(*options), FIRST
        if isinstance(loaded, tuple | list):
            return [first(loaded[0], training), first(loaded[1], others)]
        cut = replace(loaded, evaluation=first(loaded.evaluation, others), test=first(loaded.test, others))
        if given := loaded.order:  # it is made for all samples
            return replace(cut, order=lambda *epoch: given(*epoch)[np.arange(training)])
        return replace(cut, train=first(loaded.train, training))

    return load_part


# Ranks train on CPUs here, and fail in an optimizer's steps if what forked them has used the driver of a GPU.
os.environ.update({"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
# torch formats its stack whenever it is seeded, in case a GPU fails later: a tenth of a rank's time.
for device in (torch.cuda, torch.xpu, torch.mtia):
    vars(device)["traceback"] = SimpleNamespace(format_stack=list)
import_what_is_named()
rehearse()
keep_compiled(Path(os.environ[MODULES]).parent)
cut_data()
# A collection in a rank would touch, and so copy, every object that is here already; ranks live too short to need one.
gc.collect()
gc.freeze()
gc.disable()
