"""A plain loop on one device, without DDP, metrics or checkpoints: as fast as the chosen precision and layout allow."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, RandomSampler

from .settings import as_it_is
from .workloads import LOG_EVERY

Data = Dataset[tuple[Tensor, Tensor]]


def steps(model: nn.Module, optimizer: Optimizer, dataset: Data, config: Any, device: torch.device) -> Iterator[None]:
    """Train for ever with these options of a project, print the loss now and then, and yield after each step."""
    layout = torch.channels_last if config.channels_last else torch.preserve_format
    size, pinned = config.global_batch_size, device.type != "cpu"
    order = RandomSampler(dataset)  # type: ignore[arg-type]  # it has a length
    loader = DataLoader(dataset, size, sampler=order, collate_fn=as_it_is, pin_memory=pinned, drop_last=True)
    step = 0
    while True:
        for inputs, targets in loader:
            step += 1
            inputs = inputs.to(device, memory_format=layout, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_EVERY == 0:
                print(f"step {step} loss {loss.item():.4f}")
            yield


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over samples, or over the tokens of sequences."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
