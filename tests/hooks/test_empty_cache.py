import pytest
import torch

from engine import SimpleTrainer
from engine.hooks.empty_cache import EmptyCacheHook


@pytest.fixture
def emptied(monkeypatch):
    """Grows by one each time that torch is asked to free memory."""
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    return calls


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 2),
        ({"before_epoch": True}, 4),
        ({"after_epoch": False}, 0),
        ({"after_epoch": False, "after_step": 5}, 2),
        ({"after_epoch": False, "after_step": "2 epoch"}, 1),
    ],
)
def test_memory_is_freed_around_epochs_and_every_so_many_steps(
    model, batches, emptied, options, times
):
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([EmptyCacheHook(**options)])
    trainer.train(0, 12)
    assert len(emptied) == times


def test_without_an_accelerator_nothing_happens(model, batches):
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([EmptyCacheHook(after_step=1)])
    trainer.train(0, 2)
    assert trainer.iter == 2
