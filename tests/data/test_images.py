import pytest
import torch

from engine.data import LabelledImages


def test_an_image_comes_as_floats_with_its_label():
    images = torch.tensor([[[[0, 255]]], [[[51, 102]]]], dtype=torch.uint8)
    dataset = LabelledImages(images, torch.tensor([7, 8]), scale=1 / 255)
    assert len(dataset) == 2
    assert dataset[1]["label"] == 8
    torch.testing.assert_close(dataset[1]["image"], torch.tensor([[[0.2, 0.4]]]))


def test_images_and_labels_must_match():
    with pytest.raises(ValueError, match=r"got \(2, 1, 4, 4\) and \(3,\)"):
        LabelledImages(torch.zeros(2, 1, 4, 4), torch.zeros(3), scale=1)
