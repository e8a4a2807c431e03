"""The files under configs/: what they name exists, and `make train` keeps its promise."""

from pathlib import Path

import pytest

from engine.config import get_cfg
from engine.data import DatasetCatalog
from engine.defaults import DefaultTrainer
from engine.modeling import build_model
from engine.solver import build_optimizer
from engine.utils.registry import locate

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))


def load(file, *overrides):
    cfg = get_cfg()
    cfg.merge_from_file(CONFIGS / file)
    cfg.merge_from_list(overrides)
    cfg.freeze()
    return cfg


@pytest.mark.parametrize("file", FILES)
def test_a_config_is_complete(file):
    cfg = load(file)
    for name in filter(None, [cfg.TRAINER, cfg.DATALOADER.MAPPER, cfg.DATALOADER.TEST_MAPPER]):
        assert callable(locate(name))
    assert cfg.DATASETS.TRAIN
    assert {*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST} <= DatasetCatalog.keys()
    assert cfg.SEED >= 0
    assert 1 <= cfg.THREADS <= 2  # torch's own choice is up to 15 times slower on a busy machine
    if Path(file).stem != "base":
        assert build_optimizer(cfg, build_model(cfg)).param_groups


@pytest.mark.slow
@pytest.mark.usefixtures("own_loggers")
def test_the_digits_config_reaches_98_5_percent(tmp_path):
    trainer = DefaultTrainer(load("digits/cnn.yaml", "OUTPUT_DIR", str(tmp_path)))
    assert trainer.train()["classification"]["accuracy"] >= 98.5
