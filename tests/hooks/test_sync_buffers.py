from pathlib import Path

from torch import nn

from engine.hooks.sync_buffers import SyncBuffersHook
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Each rank's statistics move by the rank plus one in a step; an epoch is two steps."""

    def __init__(self, rank, *hooks):
        super().__init__()
        self.rank = rank
        self.model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3).double())
        self.register_hooks(hooks)

    def epoch_of(self, iteration):
        return iteration // 2

    def run_step(self):
        for norm in self.model:
            norm.running_mean += self.rank + 1
            norm.num_batches_tracked += self.rank + 1

    def statistics(self):
        return {name: buffer.tolist() for name, buffer in self.model.named_buffers()}


def work(rank: int, folder: Path) -> list[dict]:
    seen = []
    trainer = Trainer(rank, SyncBuffersHook())
    for iteration in range(3):
        trainer.train(iteration, iteration + 1)
        seen.append(trainer.statistics())
    return seen


def test_after_each_epoch_all_ranks_have_the_mean(processes):
    for rank, steps in enumerate(processes):
        own = rank + 1.0
        assert [step["0.running_mean"] for step in steps] == [[own] * 2, [3.0] * 2, [3 + own] * 2]
        assert [step["1.running_mean"] for step in steps] == [[own] * 3, [3.0] * 3, [3 + own] * 3]
        assert steps[1]["0.running_var"] == [1.0, 1.0]


def test_counts_are_left_alone(processes):
    assert [steps[1]["0.num_batches_tracked"] for steps in processes] == [2, 4]


def test_a_single_process_is_left_alone():
    trainer = Trainer(0, SyncBuffersHook(period=1))
    trainer.train(0, 2)
    assert trainer.statistics()["0.running_mean"] == [2.0, 2.0]
