"""ImageClassifier: layers from images to logits, with what training and evaluation need."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from engine.events import get_event_storage


class ImageClassifier(nn.Module):
    """Classifies {"image": N × C × H × W, "label": N} by `layers`, which turn images into logits.

    In training it returns the cross entropy as "loss_cls" and logs the accuracy of the batch in
    percent; otherwise it returns the "logits".
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        device = next(self.parameters()).device
        logits = self.layers(batch["image"].to(device, non_blocking=True))
        if not self.training:
            return {"logits": logits}
        labels = batch["label"].to(device, non_blocking=True)
        correct = logits.detach().argmax(dim=1) == labels
        get_event_storage().put_scalar("train/accuracy", 100 * correct.float().mean())
        return {"loss_cls": F.cross_entropy(logits, labels)}
