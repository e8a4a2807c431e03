"""Handwritten digits: the 1,797 images of 8 × 8 pixels that scikit-learn's package contains."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
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
    pixels, labels = np.hsplit(np.loadtxt(_find_file(), np.uint8, delimiter=","), [64])
    # NumPy promises that this stream never changes, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(labels))
    chosen = order[:TEST_SIZE] if split == "test" else order[TEST_SIZE:]
    images = torch.from_numpy(pixels[chosen]).view(-1, 1, 8, 8)
    return LabelledImages(images, torch.from_numpy(labels[chosen, 0]).long(), scale=1 / 16)


def _find_file() -> Path:
    """The images in scikit-learn's package, whose import would take as long as that of torch."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise UnknownNameError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn, "
            "or in the folder of this project pip install -c constraints.txt -e '.[digits]'"
        )
    return Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"


for _split in ("train", "test"):
    DatasetCatalog.register(f"digits_{_split}", partial(load_digits, _split))
    MetadataCatalog.get(f"digits_{_split}").set(
        evaluator_type="classification", classes=[str(digit) for digit in range(10)]
    )
