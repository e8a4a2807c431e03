import logging

import pytest
from fvcore.common.config import CfgNode as CN


@pytest.fixture(autouse=True)
def _engine_logs_reach_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("engine"), "propagate", True)


@pytest.fixture
def cfg() -> CN:
    """The SOLVER section with its defaults, but a run of 100 iterations and no warm-up."""
    solver = {
        "OPTIMIZER": CN({"NAME": "SGD"}, new_allowed=True),
        "BASE_LR": 0.1,
        "MOMENTUM": 0.9,
        "NESTEROV": False,
        "WEIGHT_DECAY": 0.01,
        "WEIGHT_DECAY_NORM": 0.0,
        "WEIGHT_DECAY_BIAS": None,
        "WEIGHT_DECAY_EMBED": None,
        "BIAS_LR_FACTOR": 1.0,
        "PARAM_RULES": [],
        "LAYER_DECAY": CN(
            {
                "ENABLED": False,
                "RATE": 0.5,
                "NUM_LAYERS": 0,
                "TYPE": "layer_wise",
                "PREFIX": "",
                "PATTERN": "",
                "NO_DECAY_1D": True,
            }
        ),
        "LR_SCHEDULER_NAME": "WarmupMultiStepLR",
        "MAX_ITER": 100,
        "BASE_LR_END": 0.0,
        "WARMUP_START_LR": None,
        "CLIP_GRADIENTS": CN(
            {
                "ENABLED": False,
                "CLIP_TYPE": "value",
                "CLIP_VALUE": 1.0,
                "NORM_TYPE": 2.0,
                "SCOPE": "model",
            }
        ),
    }
    curve = {
        "STEPS": (),
        "GAMMA": 0.1,
        "NUM_DECAYS": 3,
        "POWER": 0.9,
        "WARMUP_FACTOR": 0.001,
        "WARMUP_ITERS": 0,
        "WARMUP_METHOD": "linear",
        "RESCALE_INTERVAL": False,
    }
    momentum = CN({"NAME": "", "END": 1.0, **curve})
    return CN({"SOLVER": CN({**solver, **curve, "MOMENTUM_SCHEDULE": momentum})})
