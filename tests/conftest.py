import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from engine.config import CfgNode, get_cfg

torch.set_num_threads(1)  # the models of tests are too small for more

Batch = tuple[torch.Tensor, torch.Tensor]

SLOW_SECONDS = float(os.environ.get("SLOW_SECONDS", 30))  # for all slow tests of a run together
spent_on_slow = 0.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests last, in an order that changes from day to day: each has its turn."""
    order = random.Random(date.today().isoformat())
    places = {id(item): order.random() for item in items}
    items.sort(key=lambda item: places[id(item)] if item.get_closest_marker("slow") else 0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and spent_on_slow > SLOW_SECONDS:
        pytest.skip("slow tests had their share of time; SLOW_SECONDS=inf runs all")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global spent_on_slow
    if "slow" in report.keywords:
        spent_on_slow += report.duration


class Regression(nn.Module):
    """Four inputs, one output, one loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        inputs, targets = batch
        return {"loss_fit": F.mse_loss(self.linear(inputs), targets)}


@pytest.fixture
def model() -> Regression:
    """A tiny model with weights that are the same each time; copy.deepcopy gives another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Regression()


@pytest.fixture
def batches() -> list[Batch]:
    """Six batches of four."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(6)
    ]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """What the engine logs, from INFO on, whatever an earlier test has done to its logger."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])
    with caplog.at_level(logging.INFO, "engine"):
        yield caplog


@pytest.fixture
def own_loggers() -> Iterator[None]:
    """Undoes what `setup_logger` does to the loggers of engine and fvcore, and closes its files."""
    loggers = [logging.getLogger(name) for name in ("engine", "fvcore")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers = []
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        for handler in logger.handlers:
            handler.close()
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def digits_cfg(tmp_path: Path) -> Callable[..., CfgNode]:
    """Makes the frozen config of a short run on the digits: `digits_cfg("SEED", 1, ...)`."""

    def make(*overrides: Any) -> CfgNode:
        cfg = get_cfg()
        cfg.merge_from_other_cfg(
            {
                "OUTPUT_DIR": str(tmp_path / "run"),
                "SEED": 0,
                "MODEL": {
                    "META_ARCHITECTURE": "engine.zoo.digits:DigitsMLP",
                    "ARGS": {"hidden": 16},
                },
                "DATASETS": {"TRAIN": ["digits_train"], "TEST": ["digits_test"]},
                "DATALOADER": {"NUM_WORKERS": 0},
                "SOLVER": {
                    "MAX_ITER": 20,
                    "BASE_LR": 0.1,
                    "STEPS": [15],
                    "WARMUP_ITERS": 0,
                    "CHECKPOINT_PERIOD": 10,
                },
                "TEST": {"BATCH_SIZE": 360},
                "LOG_PERIOD": 1,
            }
        )
        cfg.merge_from_list(overrides)
        cfg.freeze()
        return cfg

    return make


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of this process alone, in which models can be wrapped or sharded.

    It ends long after the last step in it: a thread of gloo's may need Python to let go of that
    step, and torch waits for this thread while it ends the group, without letting it have Python.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    time.sleep(0.1)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all tests of a module share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def processes(request: pytest.FixtureRequest, folder: Path) -> list[Any]:
    """What `work(rank, folder)` of the test's module returns on each of two ranks."""
    program = [sys.executable, Path(__file__).with_name("one_of_two.py"), request.path]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCAL_")}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*program, str(rank), folder], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=110)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 300 kB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
