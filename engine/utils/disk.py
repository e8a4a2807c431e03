"""Free space: whether what a run will save fits on the disk."""

import errno
import logging
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)


def check_free_space(folder: str, size: int, count: int, least: int = 2) -> None:
    """Warn where `count` more files of `size` bytes do not fit in a folder, and raise OSError where
    not even `least` do.

    The first save needs space for one file; each later one for another, as the old file goes when
    the new one is safe. Quotas that the system does not report are not seen.
    """
    disk = shutil.disk_usage(folder)
    if disk.total == 0 or disk.free >= max(count, least) * size:  # some network disks report 0
        return
    have = f"{readable_size(disk.free)} are free"
    if disk.free < least * size:
        raise OSError(
            errno.ENOSPC,
            f"too little space for checkpoints: {least} of about {readable_size(size)} must fit, "
            f"{have}. Free some, or name another OUTPUT_DIR",
            folder,
        )
    logger.warning(
        "%s: %s, but the %d checkpoints to come will take about %s. Keep fewer of them with "
        "CHECKPOINT.KEEP_LAST, free some space, or name another OUTPUT_DIR",
        folder,
        have,
        count,
        readable_size(count * size),
    )


def state_size(model: nn.Module, optimizer: torch.optim.Optimizer, averages: bool = False) -> int:
    """About how many bytes a checkpoint of these will have; `averages` adds those of an EMA.

    An optimizer that has not stepped yet has no state: SGD is counted with a momentum for each
    parameter, if it has any, all others with two.
    """
    parameters = _bytes(model.parameters())
    size = parameters * (1 + averages) + _bytes(model.buffers())
    if state := getattr(optimizer, "state", None):  # one of the user's own need not have it
        return size + _bytes(_tensors(list(state.values())))
    for group in optimizer.param_groups:
        moments = bool(group["momentum"]) if isinstance(optimizer, torch.optim.SGD) else 2
        size += moments * _bytes(group["params"])
    return size


def readable_size(size: float) -> str:
    """1234567 as "1.23 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    # torch does not say how large sparse ones are; mostly they are small
    return sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided)


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(list(value.values()))
