"""DefaultTrainer on two processes against one, and on three that are resumed."""

import json
import os
from pathlib import Path

import pytest
import torch

from engine import launch
from engine.config import get_cfg
from engine.defaults import DefaultTrainer
from engine.hooks import CallbackHook

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


def work(rank: int, folder: Path) -> tuple[list[dict], bool]:
    """The lines, and whether the run's last checkpoint was there when this rank had trained."""
    os.environ["LOCAL_RANK"] = str(rank)
    have_trained = DefaultTrainer.train
    is_saved = []

    def train_and_look(trainer: DefaultTrainer) -> None:
        have_trained(trainer)
        is_saved.append((folder / "together" / "model_final.pth").exists())

    DefaultTrainer.train = train_and_look
    return train(folder / "together"), is_saved == [True]


@pytest.fixture(scope="module")
def curves(folder, processes):
    """The metrics of one process and of two that share its batches."""
    return train(folder / "alone"), processes[0][0]


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


def test_what_rank_0_saves_last_is_there_for_all(processes):
    assert [is_there for _, is_there in processes] == [True, True]


def train_until(stop_at: int, folder: Path) -> None:
    """Begin a run or go on with it; stop it about this iteration, to be continued."""
    cfg = get_cfg()
    cfg.merge_from_file(str(CONFIG.with_name("cnn.yaml")))
    options = ["SOLVER.MAX_ITER=40", "SOLVER.IMS_PER_BATCH=48", "TEST.EVAL_PERIOD=0", "THREADS=1"]
    cfg.merge_from_list([*options, f"OUTPUT_DIR={folder}"])
    torch.manual_seed(0)
    trainer = DefaultTrainer(cfg)
    trainer.resume_or_load(resume=True)

    def stop(_: DefaultTrainer) -> None:
        if trainer.iter == stop_at:
            trainer.stop("half of the time is over", requeue=True)

    trainer.register_hooks([CallbackHook(after_step=stop)])
    trainer.train()


@pytest.mark.slow
def test_three_processes_that_are_resumed_end_with_the_same_bits(tmp_path):
    # The sum of three gradients depends on their order, which DDP changes after its first step.
    launch(train_until, 3, args=(40, tmp_path / "straight"))
    for stop_at in (15, 40):
        launch(train_until, 3, args=(stop_at, tmp_path / "stopped"))
    straight, stopped = (
        torch.load(tmp_path / name / "model_final.pth", weights_only=True)["model"]
        for name in ("straight", "stopped")
    )
    assert straight.keys() == stopped.keys()
    assert all(torch.equal(weight, stopped[name]) for name, weight in straight.items())
