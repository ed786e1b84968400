"""Measures what the parts of a step take: python -m benchmarks.step_parts.

One process trains the smallest network in the project with the default answers, with clocks around the calls of each
part; a call within another one counts for its own part alone. The results are in benchmarks/results/step_parts.json.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist
import typer

from generator.answers.questions import TEMPLATE

from .blocks import generated_blocks
from .contenders.workloads import EPOCHS, NAME, STEPS
from .machines import machine
from .rounds import Record, spread
from .trials import render_project

RESULTS = TEMPLATE / "benchmarks" / "results" / "step_parts.json"
NETWORK = ("torch.nn.parallel:DistributedDataParallel.forward", "benchmarks.contenders.networks:TinyMLP.forward")
PROJECT, UPDATE = "ddp_project.runtime", "ddp_project.runtime.update"
# What none of the others takes is the loop's own.
PARTS = {
    "a batch, and its random generators": (f"{PROJECT}.batches:BatchDataset.__getitem__",),
    "forward pass and loss": (*NETWORK, "torch.nn.functional:cross_entropy"),
    "the accuracy": ("ddp_project.task:compute",),
    "checks and sums of what compute() returns": (f"{UPDATE}:Objective.forward", f"{PROJECT}.meter:Meter.add"),
    "backward pass": ("torch.autograd:backward",),
    "the number that corrects uneven counts": (f"{UPDATE}:Update.backward", f"{UPDATE}:Update._correct"),
    "judging the step": (f"{UPDATE}:Update.correct_gradients", f"{UPDATE}:Update.accepts"),
    "the optimizer": ("torch.optim:AdamW.step", "torch.optim:AdamW.zero_grad"),
    "reports, one in ten steps": ("train:report",),
    "the loop itself": ("train:train_epoch",),
}


def main(rounds: int = 5, steps: int = 2000, out: Path = RESULTS) -> None:
    """Write the microseconds that each part takes of a step; a first round does not count."""
    os.environ.update({NAME: "tiny_mlp", STEPS: str(steps), EPOCHS: "1"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(render_project(Path(folder) / "project")))
        measured = measure(Path(folder), rounds, steps)
    dist.destroy_process_group()
    results = {"date": date.today().isoformat(), "machine": machine(), "microseconds": measured}
    out.write_text(json.dumps(results, indent=1) + "\n")


def measure(folder: Path, rounds: int, steps: int) -> Record:
    """Train epoch after epoch with the clocks."""
    taken: Counter[str] = Counter()  # nanoseconds
    for part, names in PARTS.items():
        for name in names:
            put_clock(name, part, taken)
    train, found = generated_blocks(0, folder, torch.device("cpu"), ranks=1), []
    for _ in range(rounds + 1):
        taken.clear()
        train()
        found.append({part: taken[part] / 1000 / steps for part in PARTS})
    return {part: spread(each[part] for each in found[1:]) for part in PARTS}


def put_clock(name: str, part: str, taken: Counter[str]) -> None:
    """Let the time of a function count for a part, and not for the part that calls it."""
    function = resolve_name(name)

    def timed(*arguments: Any, **options: Any) -> Any:
        others, began = taken.total(), time.perf_counter_ns()
        result = function(*arguments, **options)
        taken[part] += time.perf_counter_ns() - began - (taken.total() - others)
        return result

    owner, _, last = name.replace(":", ".").rpartition(".")
    setattr(resolve_name(owner), last, timed)


if __name__ == "__main__":
    typer.run(main)
