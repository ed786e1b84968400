"""What each rank of a contender notes down without the contender's knowing, and writes to a file when it ends.

A hook of the model notes when each training step's forward pass begins, which takes less than a microsecond. In a
counting run, which nobody times, it also notes how many collectives and host reads there were until then.
"""

import atexit
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# DDP imports this late, and then it keeps the process group alive past its end, which can abort the process.
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

RECORDS = "BENCHMARK_RECORDS"  # the folder for the files; without it, nothing is noted
COUNTING = "BENCHMARK_COUNTING"  # whether to count, too

# Where the program would wait for a GPU, if the tensor were there.
HOST_READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
DESCRIBED = ("lr", "weight_decay", "betas", "eps", "fused")  # options of an optimizer


class Record:
    """The notes of this rank."""

    def __init__(self) -> None:
        self.forwards: list[float] = []  # time.monotonic(), which all processes of a machine share
        self.collectives: list[int] = []  # up to each forward pass
        self.reads: list[int] = []  # likewise
        self.read = 0
        self.about: dict[str, Any] = {}

    def note(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note that a forward pass begins: a pre-forward hook."""
        if model.training:
            self.forwards.append(time.monotonic())

    def note_counts(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note what was counted up to a forward pass: a pre-forward hook."""
        if not model.training:
            return
        if "weights" not in self.about:
            weights = sum(float(weight.detach().double().abs().sum()) for weight in model.parameters())
            self.about |= {"weights": weights, "batch": len(inputs[0])}
        group: Any = dist.distributed_c10d._get_default_group()
        # DDP's own all-reduces are numbered, too: torch's profiler tells the same.
        self.collectives.append(group._get_sequence_number_for_group())
        self.reads.append(self.read)

    def describe(self, optimizer: Optimizer, *_: Any) -> None:
        """Note what the optimizer is, once: a hook of all optimizers."""
        if "optimizer" not in self.about:
            options = {name: optimizer.param_groups[0][name] for name in DESCRIBED}
            self.about["optimizer"] = {"class": type(optimizer).__name__, **options}

    def write(self, folder: Path) -> None:
        """Write the notes, with the largest memory that this process has had."""
        # ru_maxrss would do but for what a process inherits of its parent.
        status = Path("/proc/self/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, flags=re.MULTILINE)
        assert found is not None
        written = {"forwards": self.forwards, "peak_memory": 1024 * int(found[1]), "about": self.about}
        written |= {"collectives": self.collectives, "reads": self.reads}
        (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(written))


def watch(model: nn.Module) -> nn.Module:
    """Note the forward passes of a model, where the environment says so, until this process ends."""
    if RECORDS not in os.environ:
        return model
    record = Record()
    if COUNTING in os.environ:
        model.register_forward_pre_hook(record.note_counts)
        register_optimizer_step_pre_hook(record.describe)
        count_reads(record)
    model.register_forward_pre_hook(record.note)
    atexit.register(record.write, Path(os.environ[RECORDS]))
    return model


def count_reads(record: Record) -> None:
    """Count each call of a method that gives the host a tensor's value."""

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def count(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            # Optimizers that are not fused read their own count of steps, which is on the CPU even with a GPU.
            caller = sys._getframe(1).f_code.co_filename
            record.read += "/torch/optim/" not in caller
            return method(tensor, *arguments, **options)

        return count

    for name in HOST_READS:
        setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
