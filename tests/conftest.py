import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # the models of tests are too small for more

Batch = tuple[torch.Tensor, torch.Tensor]


class Regression(nn.Module):
    """Four inputs, one output, one loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        inputs, targets = batch
        return {"loss_fit": F.mse_loss(self.linear(inputs), targets)}


@pytest.fixture
def model() -> Regression:
    """A tiny model with weights that are the same each time; copy.deepcopy gives another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Regression()


@pytest.fixture
def batches() -> list[Batch]:
    """Six batches of four."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(6)
    ]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """What the engine logs, from INFO on, whatever an earlier test has done to its logger."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])
    with caplog.at_level(logging.INFO, "engine"):
        yield caplog
