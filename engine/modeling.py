"""Models by name: the registry, building the one that a config names, and loading its weights."""

import logging
import os
from inspect import signature
from itertools import chain

import torch
from torch import nn

from engine.checkpoint import Checkpointer, MissingCheckpointError, find_averages
from engine.config import CfgNode, ConfigError, check_arguments, naming, naming_unknown
from engine.parallel.device import choose_device
from engine.parallel.fsdp import shard_like
from engine.utils.registry import Registry, find
from engine.utils.wrapping import plain_names

logger = logging.getLogger(__name__)

META_ARCH_REGISTRY = Registry("META_ARCH")
"""Models that a config names in MODEL.META_ARCHITECTURE."""


def build_model(cfg: CfgNode) -> nn.Module:
    """The model MODEL.META_ARCHITECTURE, made with MODEL.ARGS, on MODEL.DEVICE.

    The name is a registered one, or an import path such as `engine.zoo.digits:DigitsCNN`. What is
    `configurable`, or has `cfg` as its first argument, gets the config too.
    """
    if not cfg.MODEL.META_ARCHITECTURE:
        raise ConfigError(
            "MODEL.META_ARCHITECTURE is not set: name a model there, or give a config that does, "
            "such as --config-file configs/digits/cnn.yaml"
        )
    with naming_unknown("MODEL.META_ARCHITECTURE"):
        make = find(META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE)
    takes_cfg = hasattr(make, "from_config") or next(iter(signature(make).parameters), "") == "cfg"
    with naming("MODEL.DEVICE"):
        device = choose_device(cfg.MODEL.DEVICE)
    check_arguments(make, cfg.MODEL.ARGS, "MODEL.ARGS")
    model = make(cfg, **cfg.MODEL.ARGS) if takes_cfg else make(**cfg.MODEL.ARGS)
    return model.to(device)


def load_weights(cfg: CfgNode, model: nn.Module, resume: bool = False) -> None:
    """Load what an evaluation needs: the weights of MODEL.WEIGHTS, or with `resume` of the last
    checkpoint; their average where there is one, as in the evaluations of its run."""
    checkpointer = Checkpointer(model, cfg.OUTPUT_DIR)
    if not cfg.MODEL.WEIGHTS:
        if resume and not checkpointer.has_any():
            raise MissingCheckpointError(
                f"there is no checkpoint in {os.path.abspath(cfg.OUTPUT_DIR)}: name one with "
                "MODEL.WEIGHTS, or another OUTPUT_DIR"
            )
        if not resume:
            logger.warning(
                "No weights are given (MODEL.WEIGHTS, or --resume): the model is used as it is made"
            )
    loaded = checkpointer.resume_or_load(cfg.MODEL.WEIGHTS, resume=resume)
    plain = plain_names(model)
    tensors = chain[tuple[str, torch.Tensor]](model.named_parameters(), model.named_buffers())
    own = {plain(name): tensor for name, tensor in tensors}
    shapes = {name: tensor.shape for name, tensor in own.items()}.items()
    averages = [
        average
        for average in find_averages(loaded)
        if {name: one.shape for name, one in average.items()}.items() <= shapes
    ]
    if len(averages) == 1:
        with torch.no_grad():  # not by a state dict, which may lack what is averaged
            for name, one in averages[0].items():
                own[name].copy_(shard_like(one, own[name]))
        logger.info("The averaged weights are used, as in evaluations while training (EMAHook)")
    elif averages:
        logger.warning("The checkpoint has %d averages of the weights: none is used", len(averages))
