"""Handwritten digits of 8 × 8 pixels: an MLP, a small CNN, and an augmentation."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine.modeling import META_ARCH_REGISTRY
from engine.zoo.classifier import ImageClassifier


@META_ARCH_REGISTRY.register()
class DigitsMLP(ImageClassifier):
    """Two hidden layers of `hidden` units."""

    def __init__(self, hidden: int = 256, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Sequential(
                nn.Flatten(),
                nn.Linear(8 * 8, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, 10),
            )
        )


@META_ARCH_REGISTRY.register()
class DigitsCNN(ImageClassifier):
    """Two convolutions with batch norm, of `width` and 2 × `width` channels, and a linear layer."""

    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Sequential(
                nn.Conv2d(1, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
                nn.BatchNorm2d(2 * width),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Dropout(dropout),
                nn.Linear(2 * width * 4 * 4, 10),
            )
        )


def augment(sample: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """The sample with its image moved by at most one pixel in each direction."""
    height, width = sample["image"].shape[-2:]
    top, left = torch.randint(3, (2,), generator=generator).tolist()
    padded = F.pad(sample["image"], (1, 1, 1, 1))
    return {**sample, "image": padded[:, top : top + height, left : left + width]}
