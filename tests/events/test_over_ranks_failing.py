"""What writers show on two processes when a step fails."""

import json
from pathlib import Path

import pytest

from engine import TrainerBase
from engine.events import JSONWriter
from engine.hooks import PeriodicWriter
from engine.parallel import comm


class FailsAt5(TrainerBase):
    def run_step(self) -> None:
        if self.iter == 5:
            raise ZeroDivisionError
        self.storage.put_scalar("loss", float(comm.get_rank()))


def work(rank: int, folder: Path) -> dict:
    file = folder / "metrics.json"
    trainer = FailsAt5()
    writers = [JSONWriter(file)] if rank == 0 else []
    trainer.register_hooks([PeriodicWriter(writers, period=5, over_ranks=True)])
    with pytest.raises(ZeroDivisionError):
        trainer.train(0, 10)
    return {"lines": [json.loads(line) for line in file.open()] if rank == 0 else []}


def test_the_line_before_it_is_written_and_nobody_is_waited_for(processes):
    assert processes[0]["lines"] == [{"iteration": 4, "loss": 0.0}]
