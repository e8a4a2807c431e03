"""SimpleTrainer on two processes: when the loss of one of them is NaN, when one is slow, and when
each reads a stream of its own."""

import logging
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine import SimpleTrainer, hooks
from engine.checkpoint import Checkpointer
from engine.events import scalar
from engine.parallel.ddp import create_ddp_model


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return {"loss_scaled": self.weight * batch}


def train(bad_ranks: tuple[int, ...], fused: bool, steps: int) -> float:
    """The weight after some steps, of which bad ranks have a NaN in the third."""
    batches = [1.0] * steps
    if dist.get_rank() in bad_ranks:
        batches[2] = math.nan
    model = create_ddp_model(Scaled())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=fused)
    SimpleTrainer(model, batches, optimizer, nonfinite="skip").train(0, steps)
    return model.module.weight.item()


class SlowInForward(Scaled):
    def forward(self, batch):
        time.sleep(0.03 * dist.get_rank())
        return super().forward(batch)


def train_slowly(model: nn.Module, *slow_hooks: hooks.HookBase) -> dict[str, float]:
    """The latest metrics after some steps, as writers see them."""
    wrapped = create_ddp_model(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    trainer = SimpleTrainer(wrapped, [1.0], optimizer)
    trainer.register_hooks([*slow_hooks, hooks.PeriodicWriter([], 10, over_ranks=True)])
    trainer.train(0, 21)
    return {name: value for name, (value, _) in trainer.storage.latest().items()}


class Shard:
    """The numbers of one rank's file, which its state names."""

    def __init__(self) -> None:
        self.place = {"file": dist.get_rank(), "next": 0}

    def __iter__(self) -> Iterator[float]:
        while True:
            self.place["next"] += 1
            yield 100.0 * self.place["file"] + self.place["next"]

    def state_dict(self) -> dict[str, int]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = dict(state)


def train_on_shards(folder: Path, steps: int) -> list[float]:
    """Train up to so many steps, from the last checkpoint on; the batches of this rank."""
    model, batches = create_ddp_model(Scaled()), []
    model.module.register_forward_pre_hook(lambda _, inputs: batches.append(*inputs))
    trainer = SimpleTrainer(model, Shard(), torch.optim.SGD(model.parameters(), 1e-4))
    checkpointer = Checkpointer(model, folder, trainer=trainer)
    trainer.register_hooks([hooks.PeriodicCheckpointer(checkpointer, 10)])
    trainer.iter = -1
    checkpointer.resume_or_load("")
    trainer.train(trainer.iter + 1, steps)
    dist.barrier()
    return batches


def work(rank: int, folder: Path) -> dict:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("engine").addHandler(handler)
    slow_hook = hooks.CallbackHook(after_step=lambda trainer: time.sleep(0.03 * rank))
    seen = {
        "slow forward pass": train_slowly(SlowInForward()),
        "slow hook": train_slowly(Scaled(), slow_hook),
        "slow warnings": warnings.copy(),
    }
    warnings.clear()
    seen |= {"expected": train((), False, 5), "cpu": train((1,), False, 6)}
    scalar.DEFERS_ALL = True
    seen |= {"waiting": train((1,), False, 6), "fused": train((1,), True, 6)}
    seen["warnings"] = warnings.copy()
    seen["fused, both bad"] = train((0, 1), True, 6)
    seen["shards"] = train_on_shards(folder, 3) + train_on_shards(folder, 5)
    return seen


@pytest.mark.parametrize("path", ["cpu", "waiting", "fused", "fused, both bad"])
def test_all_ranks_skip_a_step_that_is_bad_on_one_or_more(processes, path):
    assert [process[path] for process in processes] == [processes[0]["expected"]] * 2


def test_each_rank_says_whose_loss_it_was(processes):
    good = "the loss of rank 1 is infinite or NaN at iteration 2; the step is skipped"
    what = "the loss became infinite or NaN on rank 1 at iteration 2: loss_scaled = nan"
    bad = f"{what}; the step is skipped"
    assert [process["warnings"] for process in processes] == [[good] * 3, [bad] * 3]


def test_a_rank_that_is_slow_by_itself_is_named(processes):
    told = processes[0]["slow warnings"]
    assert len(told) == 2
    for line in told:
        assert re.match(r"Rank 1 \(on .+\) is slow: its busy_time is \d\d+\.\d ms on average", line)
    assert processes[1]["slow warnings"] == []


@pytest.mark.parametrize("case", ["slow forward pass", "slow hook"])
def test_the_time_that_a_rank_is_busy_is_that_of_the_slowest(processes, case):
    assert processes[0][case]["busy_time"] > 0.03 > processes[0][case]["data_time"]


def test_each_rank_goes_on_with_the_data_that_it_had(processes):
    assert processes[0]["shards"] == [1, 2, 3, 4, 5]
    assert processes[1]["shards"] == [101, 102, 103, 104, 105]
