"""Plain loops of one process, the oracles: they know nothing of ranks, windows, checkpoints, or any rendered code."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, FEATURES, CLASSES = 119, 5, 3
EPOCHS = 3
Orders = Sequence[Sequence[int]]  # of the samples, in each epoch
AfterStep = Callable[[Mapping[str, Tensor]], object]

# An owner's data.py and model.py: without augmentation, dropout and BatchNorm, which make numbers a matter of ranks.
DATA = f"""
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, TensorDataset


def load_data(config: object) -> tuple[Dataset[Any], Dataset[Any]]:
    rng = torch.Generator().manual_seed(7)
    images = torch.randn({SAMPLES}, {FEATURES}, generator=rng)
    labels = torch.randint(0, {CLASSES}, ({SAMPLES},), generator=rng)
    both = TensorDataset(images, labels)
    return Subset(both, range({SAMPLES})), Subset(both, range(10))
"""
MODEL = f"""
from torch import nn


def build_model(config: object) -> nn.Module:
    return nn.Sequential(nn.Linear({FEATURES}, 8), nn.Tanh(), nn.Linear(8, {CLASSES}))
"""
# BatchNorm takes a bias before it away again: its gradient would be rounding alone, which AdamW makes large.
BATCH_NORM_MODEL = MODEL.replace("8), nn.Tanh()", "8, bias=False), nn.BatchNorm1d(8), nn.Tanh()")


def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(7)
    return torch.randn(SAMPLES, FEATURES, generator=rng), torch.randint(0, CLASSES, (SAMPLES,), generator=rng)


def model(*, batch_norm: bool = False) -> nn.Sequential:
    """Return the network of MODEL or BATCH_NORM_MODEL, with the initial weights of --seed 0."""
    torch.manual_seed(0)
    first = nn.Linear(FEATURES, 8, bias=not batch_norm)
    return nn.Sequential(first, *([nn.BatchNorm1d(8)] if batch_norm else []), nn.Tanh(), nn.Linear(8, CLASSES))


class Recipe(NamedTuple):
    batch: int  # samples of an optimizer step
    micro_batch: int  # samples that the last, shorter step of an epoch is a multiple of
    epochs: int
    warmup: int  # steps
    lr: float
    clip_norm: float


def windows(recipe: Recipe, orders: Orders) -> Iterator[tuple[Sequence[int], float]]:
    """The samples and the learning rate of each optimizer step, for the order of each epoch."""
    used = SAMPLES - SAMPLES % recipe.micro_batch
    in_epoch = math.ceil(used / recipe.batch)
    step = 0
    for order in orders:
        for start in range(0, used, recipe.batch):
            share = (step - recipe.warmup) / (recipe.epochs * in_epoch - recipe.warmup)
            rising, falling = (step + 1) / recipe.warmup, (1 + math.cos(math.pi * share)) / 2
            yield order[start : min(start + recipe.batch, used)], recipe.lr * (rising if share < 0 else falling)
            step += 1


def take_step(network: nn.Module, optimizer: torch.optim.Optimizer, lr: float, clip_norm: float) -> float:
    norm = nn.utils.clip_grad_norm_(network.parameters(), clip_norm or math.inf).item()
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()
    return norm


class Average:
    """An exponential moving average of weights in float64, which starts with these weights."""

    def __init__(self, weights: Mapping[str, Tensor], decay: float, steps: int = 0) -> None:
        self.weights = {name: weight.double() for name, weight in weights.items()}
        self.decay = decay
        self.steps = steps  # of training that it has seen

    def follow(self, weights: Mapping[str, Tensor]) -> None:
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.weights = {name: decay * own + (1 - decay) * weights[name].double() for name, own in self.weights.items()}
        self.steps += 1


def train(
    recipe: Recipe, orders: Orders, ignored: int = -100, after_step: AfterStep = id, parts: int | None = None
) -> tuple[dict[str, Tensor], list[float]]:
    """Train on whole batches, of which one class may not count. Returns the weights, and the norm of each step.

    With parts, BatchNorm sees each batch in so many, each with statistics of its own, whose means are returned.
    """
    images, labels = data()
    network, norms = model(batch_norm=parts is not None), []
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    statistics = [{name: buffer.clone() for name, buffer in network.named_buffers()} for _ in range(parts or 1)]
    for samples, lr in windows(recipe, orders):
        for own, chosen in zip(statistics, torch.tensor(samples).chunk(len(statistics)), strict=True):
            for name, buffer in network.named_buffers():
                buffer.copy_(own[name])
            loss = F.cross_entropy(network(images[chosen]), labels[chosen], ignore_index=ignored)
            (loss / len(statistics)).backward()
            own.update({name: buffer.clone() for name, buffer in network.named_buffers()})
        norms.append(take_step(network, optimizer, lr, recipe.clip_norm))
        after_step(network.state_dict())
    means = {name: torch.stack([own[name].double() for own in statistics]).mean(dim=0) for name in statistics[0]}
    return network.state_dict() | means, norms


def evaluate(network: nn.Module, samples: Sequence[int]) -> dict[str, Any]:
    """The mean loss and the accuracy over some samples, each counted once."""
    images, labels = data()
    chosen = torch.tensor(samples)
    with torch.inference_mode():
        logits = network(images[chosen])
        loss = F.cross_entropy(logits.double(), labels[chosen])
    return {"loss": loss.item(), "accuracy": (logits.argmax(dim=1) == labels[chosen]).double().mean().item()}
