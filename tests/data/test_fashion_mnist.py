import gzip
import struct
from pathlib import Path

import pytest
import torch

from engine.data import MetadataCatalog, get_dataset, load_fashion_mnist, read_idx
from engine.data.fashion_mnist import FOLDER

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(*shape, content):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(content)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / IMAGES).write_bytes(idx(3, 2, 2, content=range(0, 240, 20)))
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(idx(3, content=[9, 0, 5])))
    return tmp_path


def test_files_are_read_compressed_or_not(folder):
    dataset = load_fashion_mnist("test", folder)
    assert [sample["label"] for sample in dataset] == [9, 0, 5]
    expected = torch.tensor([[[80.0, 100.0], [120.0, 140.0]]]) / 255
    torch.testing.assert_close(dataset[1]["image"], expected)


def test_the_folder_can_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("FASHION_MNIST_FOLDER", str(folder))
    assert len(get_dataset("fashion_mnist_test")) == 3


def test_a_missing_folder_names_the_package(tmp_path):
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        load_fashion_mnist("train", tmp_path / "absent")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file of bytes: it begins with ''"),
        (b"GIF89a", "not an IDX file of bytes: it begins with '47 49 46 38'"),
        (idx(3, content=[])[:6], "truncated: it ends within its header of 8 bytes"),
        (idx(3, content=[1, 2]), r"its header says \(3,\), which makes 3 bytes, but 2 follow"),
        (idx(1, content=[1, 2]), "1 bytes, but 2 follow"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    path = tmp_path / LABELS
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{LABELS} .*{message}"):
        read_idx(path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-5], lambda b: b"xx" + b, lambda b: b[:12] + b"\xff" * 9]
)
def test_a_damaged_archive_is_named(tmp_path, damage):
    path = tmp_path / f"{LABELS}.gz"
    path.write_bytes(damage(gzip.compress(idx(100, content=range(100)))))
    with pytest.raises(ValueError, match=rf"{LABELS}\.gz is damaged"):
        read_idx(path)


def test_images_and_labels_of_different_number_are_refused(folder):
    (folder / f"{LABELS}.gz").write_bytes(gzip.compress(idx(2, content=[9, 0])))
    with pytest.raises(ValueError, match=r"images of shape \(3, 2, 2\) and labels of shape \(2,\)"):
        load_fashion_mnist("test", folder)


@pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_package_of_debian_is_found(monkeypatch):
    monkeypatch.delenv("FASHION_MNIST_FOLDER", raising=False)
    dataset = get_dataset("fashion_mnist_test")
    assert len(dataset) == 10_000
    assert dataset[0]["image"].shape == (1, 28, 28)
    assert MetadataCatalog.get("fashion_mnist_test").classes[dataset[0]["label"]] == "Ankle boot"
