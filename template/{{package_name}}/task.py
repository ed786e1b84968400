"""What is trained: the loss, the metrics, the optimizer, the learning rate. This file is yours; it knows no ranks."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from .config import Config
from .runtime.exits import UserError
from .runtime.meter import Mean

BEST = "accuracy"  # the validation metric that decides which checkpoint is best.pt
HIGHER_IS_BETTER = True


def compute(model: nn.Module, batch: Any) -> dict[str, Mean]:
    """Return the loss and the metrics of a batch, each as Mean(sum, count). Training and evaluation both call it.

    What is minimised is "loss": the sum over all micro-batches and ranks, divided by the count over all of them. For a
    metric that is no mean of samples, add a function summarize(): RECIPES.md shows one.
    """
    images, labels = batch
    logits = model(images)
    return {
        "loss": Mean(F.cross_entropy(logits, labels, reduction="sum"), len(labels)),
        "accuracy": Mean((logits.argmax(dim=1) == labels).sum(), len(labels)),
    }


def build_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """Choose the optimizer and its groups of parameters. The lr_scale of a group multiplies its learning rate."""
    return AdamW(model.parameters(), weight_decay=config.weight_decay, fused=True)


def lr_at(step: int, total_steps: int, config: Config) -> float:
    """Return the learning rate of a step, counted from 0: a linear warm-up, then a cosine down to zero.

    It depends on the step alone, so there is no scheduler to save and resume.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    return config.lr * (1 + math.cos(math.pi * min(1.0, share))) / 2


def predict(model: nn.Module, file: Path) -> Iterator[dict[str, Any]]:
    """Yield what the model says of each sample in a file; predict.py writes each as a line of JSON."""
    device = next(model.parameters()).device
    for images in read_images(file).split(1024):
        best = model(images.to(device)).softmax(dim=1).max(dim=1)
        for digit, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            yield {"digit": digit, "probability": probability}


def read_images(file: Path) -> Tensor:
    """Return the images of a .npy file, or of a .npz file such as digits.npz, as the model takes them."""
    try:
        with open(file, "rb") as content:
            found = np.load(content)
            images = torch.from_numpy(np.asarray(found["images"] if file.suffix == ".npz" else found, np.float32))
    except Exception as error:  # damaged bytes make np.load raise nearly anything
        raise UserError(f"{file} cannot be read as images: {error}") from error
    if images.shape[1:] != (8, 8) or not ((images >= 0) & (images <= 16)).all():
        raise UserError(f"{file} does not hold images, which are an array of shape (n, 8, 8) with values of 0 to 16")
    return images.div(16)[:, None]
