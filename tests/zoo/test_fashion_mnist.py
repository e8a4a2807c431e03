from pathlib import Path

import pytest
import torch

from engine.data import load_fashion_mnist
from engine.data.fashion_mnist import FOLDER
from engine.zoo import FashionCNN
from engine.zoo.fashion_mnist import augment


@pytest.mark.skipif(not Path(FOLDER).exists(), reason="needs Debian's dataset-fashion-mnist")
def test_the_loss_falls(train):
    storage = train(FashionCNN(width=4), load_fashion_mnist("test"), 40, mapper=augment)
    losses = [loss for loss, _ in storage.history("loss_cls").values()]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_an_image_gets_a_logit_for_each_kind_of_clothes():
    model = FashionCNN(width=2).eval()
    assert model({"image": torch.rand(3, 1, 28, 28)})["logits"].shape == (3, 10)


def test_augmentation_mirrors_half_of_the_images():
    image = torch.arange(28.0).expand(1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    mirrored = 0
    for _ in range(400):
        sample = augment({"image": image, "label": 3}, generator)
        assert sample["label"] == 3
        is_mirrored = torch.equal(sample["image"], image.flip(-1))
        assert is_mirrored or torch.equal(sample["image"], image)
        mirrored += is_mirrored
    assert 150 < mirrored < 250


def test_augmentation_draws_from_its_generator_alone():
    sample = {"image": torch.rand(1, 28, 28), "label": 0}
    before = torch.get_rng_state()
    first, second = (
        torch.stack([augment(sample, generator)["image"] for _ in range(20)])
        for generator in (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1))
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
