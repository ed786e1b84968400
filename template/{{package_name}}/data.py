"""The datasets. This file is yours: replace it with your own data. It knows nothing of ranks.

A dataset has __len__ and __getitem__(index), as everywhere in PyTorch. One that also has __getitems__(indices) returns
many samples at once: as a list or, which is faster for data in memory, as a whole batch. Draw random numbers from
torch's global RNG: it is seeded for every batch from the seed, the epoch and the place in the epoch, so that a resumed
run sees the same data.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from .config import Config


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Handwritten digits: images of 1 x 8 x 8 pixels in [0, 1], labels 0 to 9.

    The 1,797 images of digits.npz were written by 13 people: the test set of
    https://archive.ics.uci.edu/dataset/80 (E. Alpaydin and C. Kaynak, CC BY 4.0).
    """

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images = F.pad(images, (1, 1, 1, 1)) if augment else images
        self.labels = labels
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return the images, shape (len(indices), 1, 8, 8), and their labels, shape (len(indices),)."""
        chosen = torch.tensor(indices)
        images = self.images[chosen]
        return random_shift(images) if self.augment else images, self.labels[chosen]


def random_shift(padded: Tensor) -> Tensor:
    """Cut a window of 8 x 8 pixels at a random place out of each image of 10 x 10; shape (n, 1, 10, 10)."""
    top, left = torch.randint(0, 3, (2, len(padded), 1, 1))
    pixels = torch.arange(8)
    image = torch.arange(len(padded))[:, None, None]
    return padded[image, 0, top + pixels[:, None], left + pixels][:, None]


def load_data(config: Config) -> tuple[Digits, Digits]:
    """Return the training set (1,437 digits, augmented) and the validation set (360), the same split in every run."""
    with np.load(Path(__file__).with_name("digits.npz")) as digits:
        images = torch.from_numpy(digits["images"]).float().div(16)[:, None]
        labels = torch.from_numpy(digits["labels"])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    first, rest = order[:1437], order[1437:]
    return Digits(images[first], labels[first], augment=True), Digits(images[rest], labels[rest], augment=False)
