import torch

from engine import SimpleTrainer
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
