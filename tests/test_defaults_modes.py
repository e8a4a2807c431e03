"""What a run evaluates on, and what it tells of its model."""

import json

import pytest

from engine.defaults import DefaultTrainer


def test_validation_while_training_and_the_test_after_it(digits_cfg, log):
    cfg = digits_cfg("DATASETS.VAL", "['digits_train']", "DATASETS.TEST", "['digits_test']")
    results = DefaultTrainer(cfg).train()
    with open(f"{cfg.OUTPUT_DIR}/results.json") as file:
        assert json.load(file) == {"digits_test": results}
    assert "digits_train" in log.text
    assert "nothing has read" not in log.text


def test_the_best_is_chosen_by_validation(digits_cfg):
    cfg = digits_cfg(
        "DATASETS.VAL", "['digits_train']", "CHECKPOINT.BEST_METRIC", "+classification/accuracy"
    )
    trainer = DefaultTrainer(cfg)
    trainer.train()
    validated = trainer.storage.history("classification/accuracy").latest()
    assert any(getattr(hook, "best_metric", None) == validated for hook in trainer._hooks)


def test_an_unknown_validation_set_is_refused_before_training(digits_cfg):
    with pytest.raises(KeyError, match=r"DATASETS.VAL: .*digits_test"):
        DefaultTrainer(digits_cfg("DATASETS.VAL", "['digits_tset']"))


def test_the_analysis_tells_parameters_and_flops(digits_cfg, log):
    DefaultTrainer(digits_cfg("ANALYSIS.ENABLED", "True")).train()
    assert "FLOPs" in log.text
    assert "(model)" in log.text


def test_an_unknown_strategy_is_refused(digits_cfg):
    with pytest.raises(ValueError, match=r"PARALLEL\.STRATEGY"):
        DefaultTrainer(digits_cfg("PARALLEL.STRATEGY", "fsdq"))
