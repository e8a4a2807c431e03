"""DefaultPredictor: a trained model for one sample at a time."""

from typing import Any

import torch
from torch.utils.data import default_collate

from engine.checkpoint import Checkpointer
from engine.config import CfgNode
from engine.modeling import build_model


class DefaultPredictor:
    """The model of a config with its weights, called with one sample at a time.

    The sample is what a test set holds, e.g. {"image": tensor}; the outputs are the model's, for
    a batch of one.
    """

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg.clone()
        self.model = build_model(cfg)
        self.model.eval()
        Checkpointer(self.model).load(cfg.MODEL.WEIGHTS)

    @torch.no_grad()
    def __call__(self, sample: Any) -> Any:
        return self.model(default_collate([sample]))
