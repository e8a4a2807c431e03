import pytest
import torch
from torch import nn

from engine import SimpleTrainer
from engine.data import build_train_loader
from engine.hooks import CallbackHook
from engine.hooks.refresh_data_loader import RefreshDataLoader


def train(model, batches, *hooks):
    """Five steps; returns which batches they used."""
    used = []
    by_input = {id(inputs): number for number, (inputs, _) in enumerate(batches)}
    model.register_forward_pre_hook(lambda _, args: used.append(by_input[id(args[0][0])]))
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks(hooks)
    trainer.train(0, 5)
    return used


def test_training_goes_on_with_the_new_loader(model, batches):
    refresh = RefreshDataLoader(2, lambda: batches[4:])
    assert train(model, batches, refresh) == [0, 1, 4, 5, 4]


def test_the_builder_sees_what_other_hooks_did_in_the_same_step(model, batches):
    hard = []
    mine = CallbackHook(after_step=lambda trainer: hard.append(batches[5 - trainer.iter]))
    assert train(model, batches, RefreshDataLoader(2, lambda: hard[-1:]), mine) == [0, 1, 4, 4, 2]


def test_no_loader_is_built_after_the_last_step(model, batches):
    built = []
    train(model, batches, RefreshDataLoader(5, lambda: built.append("loader")))
    assert built == []


def test_a_loader_in_the_place_of_what_builds_one_is_refused(batches):
    with pytest.raises(TypeError, match="a function that builds a loader, got a list"):
        RefreshDataLoader(2, batches)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[list[int]] = []

    def forward(self, batch):
        self.seen.append(batch.tolist())
        return self.weight * batch.float().mean()


def test_a_loader_that_can_start_anywhere_goes_on_where_the_old_one_was():
    def build():
        return build_train_loader(list(range(40)), total_batch_size=2, seed=1)

    def run(*hooks, start=0, state=None) -> SimpleTrainer:
        model = Sum()
        trainer = SimpleTrainer(model, build(), torch.optim.SGD(model.parameters(), 0.1))
        trainer.register_hooks(hooks)
        if state:
            trainer.load_state_dict(state)
        trainer.train(start, 12 if start or not hooks else 6)
        return trainer

    straight = run().model.seen
    first = run(RefreshDataLoader(4, build))
    resumed = run(RefreshDataLoader(4, build), start=6, state=first.state_dict())
    assert first.model.seen + resumed.model.seen == straight
