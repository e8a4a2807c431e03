from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from engine import EventStorage, SimpleTrainer
from engine.data import build_train_loader


@pytest.fixture
def train() -> Callable[..., EventStorage]:
    """Trains a model on a data set for some steps; gives the storage that it wrote to."""

    def run(model: nn.Module, dataset: Any, steps: int, **loader_options: Any) -> EventStorage:
        loader = build_train_loader(dataset, total_batch_size=32, seed=0, **loader_options)
        trainer = SimpleTrainer(model, loader, torch.optim.AdamW(model.parameters(), 3e-3))
        trainer.train(0, steps)
        return trainer.storage

    return run


@pytest.fixture(autouse=True)
def _same_weights_in_each_test():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
