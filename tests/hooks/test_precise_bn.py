import itertools

import pytest
import torch
from torch import nn

from engine import SimpleTrainer, get_event_storage
from engine.hooks import PreciseBN


class WithNorm(nn.Module):
    """One BatchNorm layer, whose every pass is counted and leaves a scalar in the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.passes = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        get_event_storage().put_scalar("passes", self.passes)
        return self.norm(batch).sum()


def make_batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 2, generator=generator) + 5 for _ in range(4)]


def make_trainer(model: nn.Module, batches) -> SimpleTrainer:
    return SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.0))


def test_the_statistics_become_those_of_the_data():
    model, batches = WithNorm(), make_batches()
    trainer = make_trainer(model, batches)
    trainer.register_hooks([PreciseBN(0, model, batches, num_iter=4)])
    trainer.train(0, 3)
    everything = torch.cat(batches)
    torch.testing.assert_close(model.norm.running_mean, everything.mean(0))
    torch.testing.assert_close(model.norm.running_var, everything.var(0, unbiased=False))
    assert model.training


@pytest.mark.parametrize(
    ("period", "max_iter", "runs_after"), [(4, 10, [3, 7, 9]), (5, 10, [4, 9]), (0, 3, [2])]
)
def test_it_runs_every_period_and_once_at_the_last_step(log, period, max_iter, runs_after):
    model, batches = WithNorm(), make_batches()
    trainer = make_trainer(model, batches)
    trainer.register_hooks([PreciseBN(period, model, batches, num_iter=2)])
    trainer.train(0, max_iter)
    assert model.passes == max_iter + 2 * len(runs_after)
    assert log.text.count("Running PreciseBN over 2 batches") == len(runs_after)
    seen = [value for value, _ in trainer.storage.history("passes").values()]
    skipped = [int(after - before) for before, after in itertools.pairwise([*seen, model.passes])]
    assert [at for at, gap in enumerate(skipped) if gap > 1] == runs_after


def test_what_the_model_puts_meanwhile_is_dropped():
    model, batches = WithNorm(), make_batches()
    trainer = make_trainer(model, batches)
    trainer.register_hooks([PreciseBN(1, model, batches, num_iter=3)])
    trainer.train(0, 4)
    assert [value for value, _ in trainer.storage.history("passes").values()] == [1, 5, 9, 13]


def test_more_batches_than_the_loader_has_are_taken_from_its_beginning():
    model, batches = WithNorm(), make_batches()
    trainer = make_trainer(model, batches)
    trainer.register_hooks([PreciseBN(0, model, batches, num_iter=8)])
    trainer.train(0, 1)
    torch.testing.assert_close(model.norm.running_mean, torch.cat(batches).mean(0))


@pytest.mark.parametrize("model", [nn.Linear(2, 1), nn.Sequential(nn.BatchNorm1d(2).eval())])
def test_it_is_off_where_no_norm_is_in_training_mode(model, log):
    hook = PreciseBN(1, model, [], num_iter=5)
    hook.update_stats()
    assert "PreciseBN is off: the model has no BatchNorm layer in training mode" in log.text
    assert "Running PreciseBN" not in log.text


def test_it_can_be_run_by_hand_at_any_time():
    model, batches = WithNorm(), make_batches()
    PreciseBN(0, model, batches, num_iter=4).update_stats()
    torch.testing.assert_close(model.norm.running_mean, torch.cat(batches).mean(0))
