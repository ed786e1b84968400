"""What the contenders train: a network, and data made from a fixed seed, in memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .networks import CLASSES, ResNet, Transformer, resnet_50, small_cnn, tiny_mlp, wide_net
from .recording import watch

NAME, STEPS, EPOCHS = (f"BENCHMARK_{name}" for name in ("WORKLOAD", "STEPS", "EPOCHS"))  # environment variables
SEED = 0  # of the weights and of the data
LOG_EVERY = 10  # steps between two lines of the log
VALIDATION = 128  # samples


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Inputs and labels in memory, one by one."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


class Batches(Samples):
    """The same, that can also be had as whole batches, as the data.py of a generated project gives them.

    A DataLoader would collate such a batch once more: whoever uses it gives a collate_fn that leaves it as it is.
    """

    in_memory = True

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs and the labels of a batch."""
        chosen = torch.tensor(indices)
        return self.inputs[chosen], self.labels[chosen]


class Repeated(Batches):
    """One batch in place of all: to gather large images takes longer than a GPU trains on them."""

    def __init__(self, inputs: Tensor, labels: Tensor, times: int) -> None:
        super().__init__(inputs, labels)
        self.times = times

    def __len__(self) -> int:
        return self.times * len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return super().__getitem__(index % len(self.labels))

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return the first samples of the batch, as many as there are indices."""
        return self.inputs[: len(indices)], self.labels[: len(indices)]


@dataclass(frozen=True)
class Workload:
    """A network, its data, and how long to train it. The learning rate and all else is the same for all."""

    network: Callable[[], nn.Module]
    make_inputs: Callable[[Tensor, torch.Generator], Tensor]  # from the labels
    batch: int  # samples of a step, over all ranks
    steps: int
    epochs: int
    warm_up: int  # steps that are left out of the samples per second
    lr: float = 1e-3
    weight_decay: float = 1e-2
    repeated: bool = False  # train on one batch, again and again

    @property
    def steps_of_epoch(self) -> int:
        """Steps between the beginnings of two epochs, and between two checkpoints."""
        return self.steps // self.epochs

    def shortened(self, steps: int) -> "Workload":
        """The same with about so many steps in as many epochs; with all for 0."""
        steps = max(steps // self.epochs, 1) * self.epochs if steps else self.steps
        return replace(self, steps=steps, warm_up=min(self.warm_up, steps // 2))

    def build_model(self) -> nn.Module:
        """The network, freshly initialised from torch's global RNG, whose training steps are recorded."""
        return watch(self.network())

    def load_data(self) -> tuple[Batches, Batches]:
        """Return the training set and a small validation set."""
        training = self.batch if self.repeated else self.steps_of_epoch * self.batch
        random = torch.Generator().manual_seed(SEED)
        labels = torch.randint(CLASSES, (training + VALIDATION,), generator=random)
        inputs = self.make_inputs(labels, random)
        sets = Batches(inputs[:training], labels[:training]), Batches(inputs[training:], labels[training:])
        return (Repeated(sets[0].inputs, sets[0].labels, self.steps_of_epoch), sets[1]) if self.repeated else sets


def images(pixels: int) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Make noisy images of so many pixels a side: a pattern for each class, under noise."""

    def make(labels: Tensor, random: torch.Generator) -> Tensor:
        patterns = torch.randn(CLASSES, 3, pixels, pixels, generator=random)
        return torch.randn(len(labels), 3, pixels, pixels, generator=random).add_(patterns[labels], alpha=0.2)

    return make


def sequences(labels: Tensor, random: torch.Generator) -> Tensor:
    """Make sequences of 64 tokens out of 256, of which each class uses another half."""
    halves = torch.rand(CLASSES, 256, generator=random).argsort(dim=1)[:, :128]
    places = torch.randint(128, (len(labels), 64), generator=random)
    return halves[labels].gather(1, places)


WORKLOADS = {
    "tiny_mlp": Workload(tiny_mlp, images(16), batch=32, steps=4000, epochs=4, warm_up=20),
    "small_cnn": Workload(small_cnn, images(16), batch=32, steps=1200, epochs=4, warm_up=20),
    "resnet": Workload(ResNet, images(32), batch=32, steps=60, epochs=3, warm_up=5),
    "transformer": Workload(Transformer, sequences, batch=32, steps=150, epochs=3, warm_up=10),
    "wide": Workload(wide_net, images(16), batch=32, steps=12, epochs=1, warm_up=3),
    "resnet_50": Workload(resnet_50, images(224), batch=128, steps=1000, epochs=1, warm_up=20, repeated=True),
}
ON_CPUS = ("tiny_mlp", "small_cnn", "resnet", "transformer")


def chosen_workload() -> Workload:
    """The workload that the environment names, with as many steps and epochs as it says."""
    workload = WORKLOADS[os.environ[NAME]]
    epochs = int(os.environ.get(EPOCHS, workload.epochs))
    return replace(workload, steps=int(os.environ.get(STEPS, workload.steps)), epochs=epochs)
