import sys

import pytest
import torch

from engine.data import MetadataCatalog, get_dataset


def test_digits_are_split_the_same_way_on_every_machine():
    train, test = get_dataset("digits_train"), get_dataset("digits_test")
    assert (len(train), len(test)) == (1437, 360)
    assert test.labels[:10] == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    everything = torch.cat([train.images, test.images]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797  # no image is in both parts


def test_a_digit_is_one_channel_of_8_by_8_from_0_to_1():
    sample = get_dataset("digits_test")[0]
    assert sample["image"].shape == (1, 8, 8)
    assert sample["image"].dtype == torch.float32
    assert (sample["image"].min(), sample["image"].max()) == (0, 1)
    assert MetadataCatalog.get("digits_test").classes[sample["label"]] == "2"


def test_without_scikit_learn_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install .* -e '.\[digits\]'"):
        get_dataset("digits_train")
