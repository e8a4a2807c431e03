import sys

import pytest
import torch
from torch import nn

from engine.checkpoint import Checkpointer
from engine.hooks import (
    SafetensorsHook,
)
from saving_runs import (
    fail_at,
    make_trainer,
    names,
    weights,
)


class Tied(nn.Module):
    """One weight under two names, one that is not contiguous, and a part called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.module.weight
        self.transposed = nn.Parameter(torch.randn(4, 1).t())

    def forward(self, batch):
        inputs, targets = batch
        outputs = self.tied(self.module(inputs)) @ self.transposed.t()
        return (outputs - targets).square().mean()


def test_weights_are_saved_as_safetensors_and_load_back(batches, tmp_path, log):
    load_file = pytest.importorskip("safetensors.torch").load_file
    model = Tied()
    make_trainer(model, batches, SafetensorsHook(tmp_path / "export", 5)).train(0, 8)
    assert names(tmp_path / "export") == ["model_0000004.safetensors", "model_final.safetensors"]
    final = tmp_path / "export" / "model_final.safetensors"
    loaded = {name: tensor.tolist() for name, tensor in load_file(final).items()}
    assert loaded == weights(model)
    other = Tied()
    Checkpointer(other).load(str(final))
    assert weights(other) == weights(model)
    assert "do not fit" not in log.text


def test_a_failed_run_has_no_final_safetensors(model, batches, tmp_path):
    pytest.importorskip("safetensors")
    with pytest.raises(RuntimeError, match="the step failed"):
        make_trainer(model, batches, SafetensorsHook(tmp_path), fail_at(3)).train(0, 8)
    assert names(tmp_path) == []


def test_without_the_package_it_says_at_once_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        SafetensorsHook(tmp_path)
