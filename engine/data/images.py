"""Labelled images held in memory."""

from typing import Any

import torch
from torch.utils.data import Dataset


class LabelledImages(Dataset[dict[str, Any]]):
    """Images in one tensor, N × C × H × W, given out as {"image": float C × H × W, "label": int}.

    The pixels keep their own type, bytes mostly; `scale` is what a pixel is multiplied with.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, scale: float) -> None:
        if images.ndim != 4 or len(images) != len(labels):
            raise ValueError(
                f"expected N × C × H × W images and N labels, got {tuple(images.shape)} and "
                f"{tuple(labels.shape)}"
            )
        self.images = images
        self.labels = labels.tolist()
        self.scale = scale

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index] * self.scale, "label": self.labels[index]}
