"""Handwritten digits: the 1,797 images of 8 × 8 pixels that scikit-learn's package contains."""

from functools import partial
from typing import Literal

import numpy as np
import torch

from engine.data.catalog import DatasetCatalog, MetadataCatalog
from engine.data.images import LabelledImages
from engine.utils.registry import UnknownNameError

Split = Literal["train", "test"]

TEST_SIZE = 360


def load_digits(split: Split) -> LabelledImages:
    """One part of a fixed random split: 1,437 images to train on, 360 to test. Pixels in [0, 1]."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UnknownNameError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn, "
            "or in the folder of this project pip install -c constraints.txt -e '.[digits]'"
        ) from error
    digits = datasets.load_digits()
    # NumPy promises that this stream never changes, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(digits.target))
    chosen = order[:TEST_SIZE] if split == "test" else order[TEST_SIZE:]
    images = torch.from_numpy(digits.images[chosen].astype(np.uint8)).unsqueeze(1)
    return LabelledImages(images, torch.from_numpy(digits.target[chosen]), scale=1 / 16)


for _split in ("train", "test"):
    DatasetCatalog.register(f"digits_{_split}", partial(load_digits, _split))
    MetadataCatalog.get(f"digits_{_split}").set(
        evaluator_type="classification", classes=[str(digit) for digit in range(10)]
    )
