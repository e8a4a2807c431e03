import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    TensorDataset,
)

from engine import SimpleTrainer
from engine.hooks.sampler_seed import SamplerSeedHook
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Reads one pass over its loader, of eight samples, in two steps."""

    def __init__(self, loader, *hooks):
        super().__init__()
        self.data_loader = loader
        self.orders = []
        self.register_hooks(hooks)

    def epoch_of(self, iteration):
        return iteration // 2

    def run_step(self):
        if self.iter % 2 == 0:
            batches = list(self.data_loader)
            self.orders.append(torch.cat([samples for (samples,) in batches]).tolist())


def make_loader(kind):
    data = TensorDataset(torch.arange(8))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    if kind == "sampler":
        return DataLoader(data, batch_size=4, sampler=sampler)
    return DataLoader(data, batch_sampler=BatchSampler(sampler, 4, drop_last=False))


@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_each_epoch_has_the_order_of_its_number(kind):
    trainer = Trainer(make_loader(kind), SamplerSeedHook())
    trainer.train(0, 6)
    assert len({tuple(order) for order in trainer.orders}) == 3
    resumed = Trainer(make_loader(kind), SamplerSeedHook())
    resumed.train(4, 6)
    assert resumed.orders == trainer.orders[2:]


def test_a_loader_without_such_a_sampler_is_left_alone():
    trainer = Trainer([(torch.arange(8),)], SamplerSeedHook())
    trainer.train(0, 4)
    assert trainer.orders == [list(range(8))] * 2


class Noting(SequentialSampler):
    """Notes of which epoch each pass is."""

    def __init__(self, data) -> None:
        super().__init__(data)
        self.passes = []

    def set_epoch(self, epoch) -> None:
        self.epoch = epoch

    def __iter__(self):
        self.passes.append(self.epoch)
        return super().__iter__()


@pytest.mark.parametrize(
    ("batches", "accumulate"), [(5, 2), (4, 3), (5, 3), (6, 2), (3, 3), (3, 1), (1, 1)]
)
def test_a_pass_has_its_number_wherever_in_a_step_it_begins(model, batches, accumulate):
    data = [(torch.ones(4), torch.ones(1))] * batches
    sampler = Noting(data)
    loader = DataLoader(data, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = SimpleTrainer(model, loader, optimizer, accumulate=accumulate)
    trainer.register_hooks([SamplerSeedHook()])
    trainer.train(0, 30)
    assert sampler.passes == list(range(-(-30 * accumulate // batches)))
