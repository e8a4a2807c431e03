"""DefaultPredictor: a trained model for one sample at a time."""

from typing import Any

import torch

from engine.config import CfgNode
from engine.data import build_test_loader
from engine.data.from_config import find_mapper
from engine.modeling import build_model, load_weights


class DefaultPredictor:
    """The model of a config with its weights, called with one sample at a time.

    The sample is what a test set holds, e.g. {"image": tensor}, before TEST_MAPPER; the outputs
    are the model's, for a batch of one.
    """

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg.clone()
        self.model = build_model(cfg)
        self.model.eval()
        self.mapper = find_mapper(cfg.DATALOADER.TEST_MAPPER)
        load_weights(cfg, self.model)

    @torch.no_grad()
    def __call__(self, sample: Any) -> Any:
        return self.model(next(iter(build_test_loader([sample], mapper=self.mapper))))
