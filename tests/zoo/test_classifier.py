import pytest
import torch
from torch import nn

from engine import EventStorage
from engine.zoo import ImageClassifier

# The pixels of a 1 × 1 image with three channels are its logits.
BATCH = {
    "image": torch.tensor([[5.0, 0, 0], [0, 5, 0], [0, 0, 5], [5, 0, 0]]).view(4, 3, 1, 1),
    "label": torch.tensor([0, 1, 2, 2]),
}


@pytest.fixture
def model() -> ImageClassifier:
    scale = nn.Conv2d(3, 3, 1, groups=3, bias=False)
    nn.init.ones_(scale.weight)
    return ImageClassifier(nn.Sequential(scale, nn.Flatten()))


def test_in_training_it_returns_a_loss_and_logs_the_accuracy_of_the_batch(model):
    with EventStorage() as storage:
        losses = model(BATCH)
    assert list(losses) == ["loss_cls"]
    assert losses["loss_cls"].requires_grad
    right = torch.log(1 + 2 * torch.exp(torch.tensor(-5.0)))
    torch.testing.assert_close(losses["loss_cls"].detach(), right + 5 / 4)
    assert storage.latest()["train/accuracy"] == (75.0, 0)


def test_in_evaluation_it_returns_logits_and_needs_neither_labels_nor_a_storage(model):
    outputs = model.eval()({"image": BATCH["image"]})
    assert list(outputs) == ["logits"]
    torch.testing.assert_close(outputs["logits"], BATCH["image"].flatten(1))


def test_a_batch_is_moved_to_the_device_of_the_model(model):
    outputs = model.eval().to("meta")(BATCH)
    assert outputs["logits"].device.type == "meta"
