import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from engine import DefaultTrainer, EventStorage, SimpleTrainer, get_event_storage
from engine.data import build_train_loader
from engine.hooks import CallbackHook, EvalHook, PreciseBN
from engine.parallel.ddp import create_ddp_model


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


def work(rank: int, folder: Path) -> dict:
    """The statistics on two ranks, each of which has every second batch."""
    model, batches = WithNorm(), make_batches()[rank::2]
    trainer = make_trainer(create_ddp_model(model), batches)
    trainer.register_hooks([PreciseBN(0, trainer.model, batches, num_iter=2)])
    trainer.train(0, 3)
    alone = WithNorm()
    with EventStorage():
        PreciseBN(0, alone, batches, num_iter=2).update_stats()
    models = {"together": model, "alone": alone}
    return {
        name: [one.norm.running_mean.tolist(), one.norm.running_var.tolist()]
        for name, one in models.items()
    }


def test_with_several_ranks_they_are_those_of_the_data_of_all(processes):
    batches = make_batches()
    everything = torch.cat(batches)
    expected = [everything.mean(0).tolist(), everything.var(0, unbiased=False).tolist()]
    for seen in processes:
        torch.testing.assert_close(torch.tensor(seen["together"]), torch.tensor(expected))
    for rank, seen in enumerate(processes):
        own = torch.cat(batches[rank::2]).mean(0)
        torch.testing.assert_close(torch.tensor(seen["alone"][0]), own)


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


def test_a_loop_that_does_not_count_past_its_last_step_has_it_once_there(log):
    class OldLoop(SimpleTrainer):
        def train(self, start_iter: int, max_iter: int) -> None:
            self.start_iter, self.max_iter = start_iter, max_iter
            with EventStorage(start_iter) as self.storage:
                self.before_train()
                for self.iter in range(start_iter, max_iter):
                    self.before_step()
                    self.run_step()
                    self.after_step()
                self.after_train()

    model, batches = WithNorm(), make_batches()
    trainer = OldLoop(model, batches, torch.optim.SGD(model.parameters(), 0.0))
    trainer.register_hooks([PreciseBN(0, model, batches, num_iter=2)])
    trainer.train(0, 3)
    assert log.text.count("Running PreciseBN") == 1


@pytest.mark.parametrize(("requeue", "runs"), [(False, 2), (True, 1)])
def test_a_run_that_is_stopped_for_good_has_it_before_its_last_evaluation(log, requeue, runs):
    model, batches = WithNorm(), make_batches()
    trainer = make_trainer(model, batches)
    passes = []
    trainer.register_hooks(
        [
            PreciseBN(4, model, batches, num_iter=2),
            EvalHook(0, lambda: passes.append(model.passes)),
            CallbackHook(after_step=lambda t: t.iter == 5 and t.stop("enough", requeue)),
        ]
    )
    trainer.train(0, 10)
    assert log.text.count("Running PreciseBN") == runs
    assert passes == ([] if requeue else [6 + 2 * 2])


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


def test_the_batches_follow_from_the_iteration_where_the_loader_can_start_anywhere():
    def norm_after(first: int, seed: int = 0) -> torch.Tensor:
        model = WithNorm()
        trainer = make_trainer(model, [torch.zeros(2, 2)])
        loader = build_train_loader(list(torch.randn(50, 2)), total_batch_size=4, seed=seed)
        trainer.register_hooks([PreciseBN(10, model, loader, num_iter=4)])
        trainer.train(first, 30)
        return model.norm.running_mean

    with torch.random.fork_rng(devices=[]):
        means = []
        for first, seed in [(0, 0), (25, 0), (0, 1)]:
            torch.manual_seed(0)
            means.append(norm_after(first, seed))
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


class NormedDigits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8))
        self.last = nn.Linear(8, 10)

    def forward(self, batch):
        logits = self.last(self.layers(batch["image"]))
        if self.training:
            return {"loss": nn.functional.cross_entropy(logits, batch["label"])}
        return {"logits": logits}


class NormTrainer(DefaultTrainer):
    @classmethod
    def build_model(cls, cfg):
        return NormedDigits()


@pytest.mark.usefixtures("own_loggers")
@pytest.mark.parametrize("seed", [0, -1])
def test_a_resumed_run_ends_with_the_same_statistics(digits_cfg, seed):
    settings = ["SEED", seed, "TEST.PRECISE_BN.ENABLED", True, "TEST.PRECISE_BN.NUM_ITER", 3]
    cfg = digits_cfg(*settings, "TEST.EVAL_PERIOD", 4)
    straight = NormTrainer(cfg)
    straight.train()
    resumed = NormTrainer(cfg)
    resumed.checkpointer.load(f"{resumed.cfg.OUTPUT_DIR}/model_0000009.pth")
    resumed.train()
    expected, states = straight.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(value, states[name]) for name, value in expected.items())
