from pathlib import Path

import torch
from torch import nn

from engine.hooks import EvalHook
from engine.hooks.sync_buffers import SyncBuffersHook
from engine.parallel.ddp import create_ddp_model
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Each rank's statistics move by the rank plus one in a step; an epoch is two steps."""

    def __init__(self, rank, *hooks):
        super().__init__()
        self.rank = rank
        self.norms = self.model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3).double())
        self.register_hooks(hooks)

    def epoch_of(self, iteration):
        return iteration // 2

    def run_step(self):
        for norm in self.norms:
            norm.running_mean += self.rank + 1
            norm.num_batches_tracked += self.rank + 1

    def statistics(self):
        return {name: buffer.tolist() for name, buffer in self.model.named_buffers()}


def work(rank: int, folder: Path) -> dict:
    seen = []
    trainer = Trainer(rank, SyncBuffersHook())
    for iteration in range(3):
        trainer.train(iteration, iteration + 1)
        seen.append(trainer.statistics())
    return {
        "steps": seen,
        "evaluated": evaluate(rank, is_replicated=True),
        "evaluated alone": evaluate(rank, is_replicated=False),
        "trained with": train_together(rank),
    }


def evaluate(rank: int, is_replicated: bool) -> list[float]:
    """The statistics that an evaluation uses, after a step in which those of ranks went apart."""
    seen = []
    trainer = Trainer(rank)
    if is_replicated:
        trainer.model = create_ddp_model(trainer.norms, broadcast_buffers=False)
    hook = EvalHook(1, lambda: seen.extend(trainer.norms[0].running_mean.tolist()))
    trainer.register_hooks([hook])
    if rank == 1:  # a rank may have others besides
        trainer.norms.register_buffer("cache", torch.ones(5))
    trainer.train(0, 1)
    return seen


def train_together(rank: int) -> list[float]:
    """A random buffer of a model that is wrapped."""
    model = nn.Linear(1, 1)
    model.register_buffer("projection", torch.full((2,), float(rank)))
    return create_ddp_model(model, broadcast_buffers=False).module.projection.tolist()


def test_evaluations_use_the_buffers_of_rank_0_which_are_those_that_are_saved(processes):
    assert [process["evaluated"] for process in processes] == [[1.0, 1.0]] * 2


def test_ranks_that_each_train_a_model_of_their_own_evaluate_it(processes):
    assert [process["evaluated alone"] for process in processes] == [[1.0, 1.0], [2.0, 2.0]]


def test_a_wrapped_model_begins_with_the_buffers_of_rank_0(processes):
    assert [process["trained with"] for process in processes] == [[0.0, 0.0]] * 2


def test_after_each_epoch_all_ranks_have_the_mean(processes):
    for rank, steps in enumerate(process["steps"] for process in processes):
        own = rank + 1.0
        assert [step["0.running_mean"] for step in steps] == [[own] * 2, [3.0] * 2, [3 + own] * 2]
        assert [step["1.running_mean"] for step in steps] == [[own] * 3, [3.0] * 3, [3 + own] * 3]
        assert steps[1]["0.running_var"] == [1.0, 1.0]


def test_counts_are_left_alone(processes):
    assert [process["steps"][1]["0.num_batches_tracked"] for process in processes] == [2, 4]


def test_a_single_process_is_left_alone():
    trainer = Trainer(0, SyncBuffersHook(period=1))
    trainer.train(0, 2)
    assert trainer.statistics()["0.running_mean"] == [2.0, 2.0]
