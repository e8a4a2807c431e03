"""This file is also the program of the two processes: see `work`."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
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


def work(rank: int, store: str) -> list[dict]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    seen = []
    trainer = Trainer(rank, SyncBuffersHook())
    for iteration in range(3):
        trainer.train(iteration, iteration + 1)
        seen.append(trainer.statistics())
    dist.destroy_process_group()
    return seen


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    store = tmp_path_factory.mktemp("sync_buffers") / "store"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(output) for output in outputs]


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(work(int(sys.argv[1]), sys.argv[2])))
