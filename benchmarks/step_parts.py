"""Measures what the parts of a step take.

One process trains the smallest network in the project with the default answers, with clocks around the calls of each
part; a call within another one counts for its own part alone.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist

from . import runner
from .blocks import generated_run, train_block
from .contenders.workloads import EPOCHS, NAME, STEPS
from .runner import Record, in_turn
from .trials import render_project

NETWORK = ("torch.nn.parallel:DistributedDataParallel.forward", "torch.nn:Sequential.forward")
PROJECT, UPDATE = "ddp_project.runtime", "ddp_project.runtime.optimizer_step"
# What none of the others takes is the loop's own.
PARTS = {
    "a batch, and its random generators": (f"{PROJECT}.collation:BatchDataset.__getitem__",),
    "forward pass and loss": (*NETWORK, "torch.nn.functional:cross_entropy"),
    "the accuracy": ("ddp_project.task:compute",),
    "checks and sums of what compute() returns": (
        f"{UPDATE}:LossModule.forward",
        f"{PROJECT}.metrics:MetricAccumulator.add",
    ),
    "backward pass": ("torch.autograd:backward",),
    "the number that corrects uneven counts": (f"{UPDATE}:Update.backward", f"{UPDATE}:Update._correct"),
    "judging the step": (f"{UPDATE}:Update.normalize_gradients", f"{UPDATE}:Update.is_finite"),
    "the optimizer": ("torch.optim:AdamW.step", "torch.optim:AdamW.zero_grad"),
    "reports, one in ten steps": ("train:reduce_and_log",),
    "the loop itself": ("train:train_step",),
}


@dataclass
class Benchmark(runner.Benchmark):
    """The microseconds that each part takes of a step."""

    steps: int = 2000

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Train epoch after epoch with the clocks."""
        os.environ.update({NAME: "tiny_mlp", STEPS: str(self.steps), EPOCHS: "1"})
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sys.path.insert(0, str(render_project(folder / "project")))
        taken: Counter[str] = Counter()  # nanoseconds
        for part, names in PARTS.items():
            for name in names:
                put_clock(name, part, taken)
        run = generated_run(0, folder, torch.device("cpu"), ranks=1)

        def epoch() -> Record:
            taken.clear()
            train_block(run)
            return {part: taken[part] / 1000 / self.steps for part in PARTS}

        *_, found = in_turn({"an epoch": epoch}, self.rounds, warm_up=1)
        dist.destroy_process_group()
        yield [{"part": part, "microseconds": numbers} for part, numbers in found["an epoch"].items()]


def put_clock(name: str, part: str, taken: Counter[str], now: Callable[[], int] = time.perf_counter_ns) -> None:
    """Let the time of a function count for a part, and not for the part that calls it."""
    owner, _, last = name.replace(":", ".").rpartition(".")
    setattr(resolve_name(owner), last, timed(resolve_name(name), part, taken, now))


def timed(
    function: Callable[..., Any], part: str, taken: Counter[str], now: Callable[[], int] = time.perf_counter_ns
) -> Callable[..., Any]:
    """Return a function whose time counts for a part, but for the time of other parts in it."""

    def call(*arguments: Any, **options: Any) -> Any:
        others, began = taken.total(), now()
        result = function(*arguments, **options)
        taken[part] += now() - began - (taken.total() - others)
        return result

    return call
