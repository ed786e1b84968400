"""The networks of the workloads."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


# Images have 3 x 16 x 16 pixels, but for those of the residual networks; sequences have 64 tokens out of 256.


def small_cnn() -> nn.Module:
    """Return two convolutions with BatchNorm: what surrounds so small a network shows."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((3, 16, 32)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, CLASSES))


def tiny_mlp(width: int = 64) -> nn.Module:
    """Return one hidden layer: it computes less than what surrounds it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, width), nn.ReLU(), nn.Linear(width, CLASSES))


def wide_net(width: int = 1536, layers: int = 8) -> nn.Module:
    """Return linear layers of 18 million weights: what a copy of all weights takes shows."""
    pairs = itertools.pairwise((3 * 16 * 16, *(width,) * layers))
    hidden = (layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU()))
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, CLASSES))


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, around which the input is added to the output."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images or features."""
        inner = F.relu(self.first_norm(self.first(images)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


class ResNet(nn.Module):
    """Five residual blocks for images of 3 x 32 x 32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        self.blocks = nn.Sequential(*(ResidualBlock(*width) for width in widths))
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (batch, 10), of images of shape (batch, 3, 32, 32)."""
        logits: Tensor = self.classifier(self.blocks(images).mean(dim=(2, 3)))
        return logits


class Bottleneck(nn.Module):
    """Three convolutions with BatchNorm, the middle one narrower, around which the input is added to the output."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *convolution(before, width, kernel=1),
            nn.ReLU(inplace=True),
            *convolution(width, width, kernel=3, stride=stride),
            nn.ReLU(inplace=True),
            *convolution(width, 4 * width, kernel=1),
        )
        same = before == 4 * width and stride == 1
        self.shortcut = nn.Sequential(*([] if same else convolution(before, 4 * width, kernel=1, stride=stride)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images or features."""
        return F.relu(self.inner(images) + self.shortcut(images))


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its BatchNorm."""
    return [nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(after)]


def resnet_50(classes: int = 1000) -> nn.Module:
    """Return ResNet-50 (He et al., 2015), with the strides in its 3 x 3 convolutions: 25.6 million weights."""
    layers = [*convolution(3, 64, kernel=7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    before = 64
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(before, width, 1 if number else stride))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Transformer(nn.Module):
    """Two encoder layers, for sequences of 64 tokens out of 256."""

    def __init__(self, width: int = 128, tokens: int = 256, length: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.places = nn.Parameter(torch.randn(length, width) / width**0.5)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the logits, shape (batch, 10), of sequences of shape (batch, 64)."""
        logits: Tensor = self.classifier(self.layers(self.embedding(sequences) + self.places).mean(dim=1))
        return logits
