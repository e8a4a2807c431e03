"""Fashion-MNIST: 70,000 images of clothes, 28 × 28 pixels, read from IDX files."""

import gzip
import math
import os
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from engine.data.catalog import DatasetCatalog, MetadataCatalog
from engine.data.images import LabelledImages

Split = Literal["train", "test"]

FOLDER = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package dataset-fashion-mnist puts the files."""

CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]


def load_fashion_mnist(split: Split, folder: str | Path | None = None) -> LabelledImages:
    """60,000 images to train on or 10,000 to test, pixels in [0, 1].

    They are read from `folder`, else from `$FASHION_MNIST_FOLDER`, else from where Debian's package
    puts them. The files may be compressed (.gz) or not.
    """
    folder = Path(folder or os.environ.get("FASHION_MNIST_FOLDER", FOLDER))
    prefix = "train" if split == "train" else "t10k"
    images = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{folder}: {prefix} has images of shape {tuple(images.shape)} and labels of shape "
            f"{tuple(labels.shape)}, expected N × height × width and N"
        )
    return LabelledImages(images.unsqueeze(1), labels, scale=1 / 255)


def read_idx(path: str | Path) -> torch.Tensor:
    """The tensor of bytes in an IDX file, which may be compressed (.gz)."""
    path = Path(path)
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions, then their sizes.
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(
            f"{path} is not an IDX file of bytes: it begins with '{content[:4].hex(' ')}', "
            "expected '00 00 08' and the number of dimensions"
        )
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise ValueError(f"{path} is truncated: it ends within its header of {header} bytes")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{path} is damaged: its header says {shape}, which makes {math.prod(shape)} bytes, "
            f"but {len(content) - header} follow"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header:].reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"Fashion-MNIST is not in {folder}: no {name} or {name}.gz there; install it with "
        "apt-get install dataset-fashion-mnist, or name its folder in $FASHION_MNIST_FOLDER"
    )


for _split in ("train", "test"):
    DatasetCatalog.register(f"fashion_mnist_{_split}", partial(load_fashion_mnist, _split))
    MetadataCatalog.get(f"fashion_mnist_{_split}").set(
        evaluator_type="classification", classes=CLASSES
    )
