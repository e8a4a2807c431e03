"""DefaultPredictor: a trained model for one sample at a time."""

from typing import Any

import torch
from torch.utils.data import default_collate

from engine.config import CfgNode
from engine.data import MapDataset
from engine.data.from_config import find_function
from engine.modeling import build_model, load_weights
from engine.utils.registry import locate


class DefaultPredictor:
    """The model of a config with its weights, called with one sample at a time.

    The sample is what a test set holds, e.g. {"image": tensor}, before TEST_MAPPER; the outputs
    are the model's, for a batch of one made as DATALOADER.COLLATE says.
    """

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg.clone()
        # The module of the trainer registers what the config names, and may build its own model.
        build = locate(cfg.TRAINER).build_model if cfg.TRAINER else build_model
        self.model = build(cfg)
        self.model.eval()
        self.mapper = find_function(cfg.DATALOADER.TEST_MAPPER)
        self.collate = find_function(cfg.DATALOADER.COLLATE) or default_collate
        load_weights(cfg, self.model)

    @torch.no_grad()
    def __call__(self, sample: Any) -> Any:
        if self.mapper:
            sample = MapDataset([sample], self.mapper)[0]
        return self.model(self.collate([sample]))
