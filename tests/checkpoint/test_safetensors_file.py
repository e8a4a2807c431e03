import builtins
import json

import pytest
import torch

from engine.checkpoint.safetensors_file import as_safetensors, import_safetensors


def test_weights_come_back_whatever_their_memory_is_like():
    weight = torch.arange(6.0).view(2, 3)
    weights = {"weight": weight, "tied": weight, "transposed": weight.T, "part": weight[:, 1:]}
    loaded = import_safetensors().load(as_safetensors(weights))
    assert loaded.keys() == weights.keys()
    for name, one in weights.items():
        assert torch.equal(loaded[name], one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_weights_keep_their_type(dtype):
    loaded = import_safetensors().load(as_safetensors({"x": torch.ones((2, 0), dtype=dtype)}))
    assert (loaded["x"].dtype, loaded["x"].shape) == (dtype, (2, 0))


def test_what_is_no_tensor_is_left_out():
    data = as_safetensors({"x": torch.ones(1), "module._extra_state": {"steps": 3}})
    length = int.from_bytes(data[:8], "little")
    assert list(json.loads(data[8 : 8 + length])) == ["x"]


def test_without_the_package_it_says_what_to_install(monkeypatch):
    def find(name, *args, **kwargs):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", find)
    with pytest.raises(ImportError, match="pip install safetensors"):
        as_safetensors({"x": torch.ones(1)})
