"""Models inside the wrappers that spread them over devices or processes."""

from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel or DataParallel, whose names have no "module."."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, parallel) else model
