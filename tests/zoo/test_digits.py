import pytest
import torch

from engine.data import load_digits
from engine.zoo import DigitsCNN, DigitsMLP
from engine.zoo.digits import augment


@pytest.mark.parametrize("model_class", [DigitsMLP, DigitsCNN])
def test_the_loss_falls_and_the_accuracy_rises(train, model_class):
    storage = train(model_class(dropout=0.1), load_digits("train"), 60, mapper=augment)
    losses = [loss for loss, _ in storage.history("loss_cls").values()]
    accuracies = [accuracy for accuracy, _ in storage.history("train/accuracy").values()]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert accuracies[0] < 30  # percent; chance is 10
    assert sum(accuracies[-10:]) / 10 > 45


@pytest.mark.parametrize("model", [DigitsMLP(hidden=8), DigitsCNN(width=2)], ids=["MLP", "CNN"])
def test_an_image_gets_a_logit_for_each_digit(model):
    assert model.eval()({"image": torch.rand(5, 1, 8, 8)})["logits"].shape == (5, 10)


def test_dropout_acts_in_training_only():
    model = DigitsMLP(dropout=0.5)
    images = torch.rand(4, 1, 8, 8)
    assert not torch.equal(model.layers(images), model.layers(images))
    model.eval()
    assert torch.equal(model.layers(images), model.layers(images))


def test_augmentation_moves_the_image_by_at_most_one_pixel():
    image = torch.zeros(1, 8, 8)
    image[0, 3, 4] = 1
    generator = torch.Generator().manual_seed(0)
    moved = [augment({"image": image, "label": 7}, generator) for _ in range(100)]
    assert all(sample["label"] == 7 and sample["image"].shape == (1, 8, 8) for sample in moved)
    places = {tuple(sample["image"][0].nonzero()[0].tolist()) for sample in moved}
    assert places == {(row, column) for row in (2, 3, 4) for column in (3, 4, 5)}


def test_augmentation_draws_from_its_generator_alone():
    sample = {"image": torch.rand(1, 8, 8), "label": 0}
    before = torch.get_rng_state()
    first, second = (
        torch.stack([augment(sample, generator)["image"] for _ in range(20)])
        for generator in (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1))
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
