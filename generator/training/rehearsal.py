"""Does once, before any rank is forked, what every program does at its beginning and what takes its time only once.

Libraries import parts of themselves at their first use, and compile kernels. None of this starts a thread.
"""

import gc
import io
from dataclasses import dataclass

import torch
import tyro
from torch import nn

from .excerpt import cut_data


@dataclass(frozen=True)
class Options:
    """Options such as a program has."""

    number: int = 1
    """A number."""
    path: str | None = None
    """A text."""


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


rehearse()
cut_data()
# A collection in a rank would touch, and so copy, every object that is here already; ranks live too short to need one.
gc.collect()
gc.freeze()
gc.disable()
