"""SimpleTrainer on two processes when the loss of one of them is NaN."""

import logging
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine import SimpleTrainer
from engine.events import scalar
from engine.parallel.ddp import create_ddp_model


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return {"loss_scaled": self.weight * batch}


def train(bad_rank: int | None, fused: bool, steps: int) -> float:
    """The weight after some steps, of which a bad rank has a NaN in the third."""
    batches = [1.0] * steps
    if bad_rank == dist.get_rank():
        batches[2] = math.nan
    model = create_ddp_model(Scaled())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=fused)
    SimpleTrainer(model, batches, optimizer, nonfinite="skip").train(0, steps)
    return model.module.weight.item()


def work(rank: int, folder: Path) -> dict:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("engine").addHandler(handler)
    seen = {"expected": train(None, False, 5), "cpu": train(1, False, 6)}
    scalar.DEFERS_ALL = True
    seen |= {"waiting": train(1, False, 6), "fused": train(1, True, 6), "warnings": warnings}
    return seen


@pytest.mark.parametrize("path", ["cpu", "waiting", "fused"])
def test_all_ranks_skip_a_step_that_is_bad_on_one(processes, path):
    assert [process[path] for process in processes] == [processes[0]["expected"]] * 2


def test_each_rank_says_whose_loss_it_was(processes):
    good = "the loss of rank 1 is infinite or NaN at iteration 2; the step is skipped"
    what = "the loss became infinite or NaN on rank 1 at iteration 2: loss_scaled = nan"
    bad = f"{what}; the step is skipped"
    assert [process["warnings"] for process in processes] == [[good] * 3, [bad] * 3]
