"""DefaultTrainer on two processes against one. This file is also their program: see `curves`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

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


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """The metrics of one process and of two that share its batches."""
    folder = tmp_path_factory.mktemp("curves")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(size), f"{folder}/{size}"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for size, rank in [(1, 0), (2, 0), (2, 1)]
    ]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(output.splitlines()[-1]) for output in outputs[:2]]


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


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if size > 1:
        os.environ["LOCAL_RANK"] = str(rank)
        folder.parent.mkdir(exist_ok=True)
        store = f"file://{folder.parent}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    print(json.dumps(train(folder)))
    if size > 1:
        dist.destroy_process_group()
