"""DistributedDataParallel around a model, where there is more than one process."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.parallel import comm


def create_ddp_model(
    model: nn.Module, *, fp16_compression: bool = False, **kwargs: Any
) -> nn.Module:
    """The model in DistributedDataParallel; the model itself in a run of one process.

    `kwargs` are those of DistributedDataParallel. `fp16_compression` sends gradients as float16.
    """
    if comm.get_world_size() == 1:
        return model
    device = next(model.parameters()).device
    if device.type != "cpu":
        kwargs.setdefault("device_ids", [device])
    wrapped = DistributedDataParallel(model, **kwargs)
    if fp16_compression:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        wrapped.register_comm_hook(torch.distributed.group.WORLD, default_hooks.fp16_compress_hook)
    return wrapped
