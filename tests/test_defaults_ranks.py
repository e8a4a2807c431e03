"""DefaultTrainer on two processes against one."""

import json
import os
from pathlib import Path

import pytest
import torch

from engine.config import get_cfg
from engine.defaults import DefaultTrainer

CONFIG = Path(__file__).parents[1] / "configs" / "digits" / "mlp.yaml"
OPTIONS = ["SOLVER.MAX_ITER=60", "SOLVER.WARMUP_ITERS=10", "TEST.EVAL_PERIOD=25", "THREADS=1"]


def train(folder: Path, *options: str) -> list[dict]:
    """The lines of metrics.json."""
    cfg = get_cfg()
    cfg.merge_from_file(str(CONFIG))
    cfg.merge_from_list([*OPTIONS, f"OUTPUT_DIR={folder}", *options])
    torch.manual_seed(0)
    DefaultTrainer(cfg).train()
    return [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]


def work(rank: int, folder: Path) -> list[dict]:
    os.environ["LOCAL_RANK"] = str(rank)
    return train(folder / "together")


@pytest.fixture(scope="module")
def curves(folder, processes):
    """The metrics of one process and of two that share its batches."""
    return train(folder / "alone"), processes[0]


def test_two_processes_have_the_loss_curve_of_one(curves):
    alone, together = curves
    assert [line["iteration"] for line in together] == [line["iteration"] for line in alone]
    assert [line["iteration"] for line in alone] == [19, 24, 39, 49, 59, 60]
    for name in ("total_loss", "lr"):
        expected = [line[name] for line in alone[:-1]]
        assert [line[name] for line in together[:-1]] == pytest.approx(expected, rel=1e-5)


def test_their_evaluations_are_the_same(curves):
    for alone, together in zip(*curves, strict=True):
        results = {name for name in alone if name.startswith("classification/")}
        assert bool(results) == (alone["iteration"] in (24, 49, 60))
        for name in results:
            assert together[name] == pytest.approx(alone[name], rel=1e-5)
