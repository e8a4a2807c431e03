"""Models by name: the registry, building the one that a config names, and loading its weights."""

import logging
from inspect import signature

from torch import nn

from engine.checkpoint import Checkpointer
from engine.config import CfgNode, ConfigError
from engine.parallel.device import choose_device
from engine.utils.registry import Registry, find

logger = logging.getLogger(__name__)

META_ARCH_REGISTRY = Registry("META_ARCH")
"""Models that a config names in MODEL.META_ARCHITECTURE."""


def build_model(cfg: CfgNode) -> nn.Module:
    """The model MODEL.META_ARCHITECTURE, made with MODEL.ARGS, on MODEL.DEVICE.

    The name is a registered one, or an import path such as `engine.zoo.digits:DigitsNet`. What is
    `configurable`, or has `cfg` as its first argument, gets the config too.
    """
    if not cfg.MODEL.META_ARCHITECTURE:
        raise ConfigError(
            "MODEL.META_ARCHITECTURE is not set: name a model there, or give a config that does, "
            "such as --config-file configs/digits/cnn.yaml"
        )
    make = find(META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE)
    takes_cfg = hasattr(make, "from_config") or next(iter(signature(make).parameters), "") == "cfg"
    model = make(cfg, **cfg.MODEL.ARGS) if takes_cfg else make(**cfg.MODEL.ARGS)
    return model.to(choose_device(cfg.MODEL.DEVICE))


def load_weights(cfg: CfgNode, model: nn.Module, resume: bool = False) -> None:
    """Load what an evaluation needs: the weights of MODEL.WEIGHTS, or with `resume` of the last
    checkpoint; their average where EMA is on."""
    loaded = Checkpointer(model, cfg.OUTPUT_DIR).resume_or_load(cfg.MODEL.WEIGHTS, resume=resume)
    hook_states = loaded.get("trainer", {}).get("hooks", {})
    average = hook_states.get("EMAHook", {}).get("average")
    if average and (cfg.EMA.ENABLED or "EMAHook" in str(cfg.HOOKS)):
        model.load_state_dict(average, strict=False)
        logger.info("The averaged weights are used, as in evaluations while training (EMAHook)")
    elif average:
        logger.warning(
            "The checkpoint has averaged weights too (EMAHook): set EMA.ENABLED to evaluate them"
        )
