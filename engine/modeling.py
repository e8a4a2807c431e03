"""Models by name: the registry, and building the one that a config names."""

from torch import nn

from engine.config import CfgNode
from engine.parallel.device import choose_device
from engine.utils.registry import Registry, find

META_ARCH_REGISTRY = Registry("META_ARCH")
"""Models that a config names in MODEL.META_ARCHITECTURE."""


def build_model(cfg: CfgNode) -> nn.Module:
    """The model MODEL.META_ARCHITECTURE, made with MODEL.ARGS, on MODEL.DEVICE.

    The name is a registered one, or an import path such as `engine.zoo.digits:DigitsNet`.
    """
    model = find(META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE)(**cfg.MODEL.ARGS)
    return model.to(choose_device(cfg.MODEL.DEVICE))
