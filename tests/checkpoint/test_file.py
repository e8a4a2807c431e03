import sys

import pytest
import torch

from engine.checkpoint.file import CheckpointError, read_file
from engine.checkpoint.safetensors_file import as_safetensors

WEIGHTS = {"weight": torch.ones(2)}


@pytest.mark.parametrize(
    "saved", [{"model": WEIGHTS}, {"state_dict": WEIGHTS, "epoch": 3}, WEIGHTS], ids=str
)
def test_weights_are_found_where_others_have_them(tmp_path, saved):
    torch.save(saved, tmp_path / "a.pth")
    assert torch.equal(read_file(str(tmp_path / "a.pth"))["model"]["weight"], WEIGHTS["weight"])


def test_safetensors_are_read_and_written(tmp_path):
    tied = {"one": WEIGHTS["weight"], "other": WEIGHTS["weight"], "turned": torch.ones(2, 3).t()}
    (tmp_path / "a.safetensors").write_bytes(as_safetensors(tied))
    read = read_file(str(tmp_path / "a.safetensors"))["model"]
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        name: tensor.tolist() for name, tensor in tied.items()
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pth", b"no checkpoint", "it is damaged, or not a checkpoint"),
        ("a.safetensors", b"no checkpoint", "it is damaged, or not a checkpoint"),
        ("a.pth", [1, 2], "it holds no dict of weights"),
        ("a.pth", {"model": pytest}, "which is no plain value: loading it could run code"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content if content != {"model": pytest} else {"model": Odd()}, path)
    with pytest.raises(CheckpointError, match=f"{name} cannot be loaded: .*{message}"):
        read_file(str(path))


class Odd:
    """Not a plain value."""


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_file(str(tmp_path / "a.safetensors"))
