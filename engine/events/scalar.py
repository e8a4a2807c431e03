"""What counts as a scalar, and which ones stay on their device for now."""

import numbers
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.parallel.fsdp import is_sharded_tensor

DEFERS_ALL = False  # `tools/benchmark.py` and tests set it: the path of accelerators, on the CPU


def is_deferred(value: object) -> bool:
    """Whether reading the number would stop a device: true for tensors on accelerators."""
    return isinstance(value, Tensor) and (DEFERS_ALL or not value.is_cpu)


def as_scalar(name: str, value: Any) -> float | Tensor:
    """A float, or for a tensor on an accelerator a detached copy of it as it is at this moment.

    Refuses what is not one real number, naming the metric.
    """
    # What most scalars are comes first: the abstract numbers.Real is slow to ask.
    if isinstance(value, Tensor):
        if type(value) is not Tensor:
            refuse_part(f"metric {name!r}", value)
        if DEFERS_ALL or not value.is_cpu:
            if value.numel() != 1 or value.dtype.is_complex or value.is_meta:
                raise _not_one_number(name, value)
            return value.detach().reshape(()).clone()
        try:
            return float(value.item())
        except (RuntimeError, TypeError):  # more or less than one element; complex
            raise _not_one_number(name, value) from None
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if type(value) is int or isinstance(value, (numbers.Real, np.bool_)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"metric {name!r} is an int too large for a float") from None
    raise TypeError(
        f"metric {name!r} must be a Python or NumPy number or a one-element tensor, "
        f"got {type(value).__name__}: {value!r:.80}"
    )


def refuse_part(what: str, tensor: Tensor) -> None:
    """Refuse a tensor of which other ranks have parts: its own `item` gives this rank's part of a
    norm or sum as if it were the whole."""
    if is_sharded_tensor(tensor) and not all(one.is_replicate() for one in tensor.placements):  # type: ignore[attr-defined]
        raise ValueError(
            f"{what} is sharded, and this rank has a part of it: put what its full_tensor() gives, "
            "which all ranks must call"
        )


def _not_one_number(name: str, tensor: Tensor) -> ValueError:
    return ValueError(
        f"metric {name!r} must be one real number, got a tensor of shape {tuple(tensor.shape)} "
        f"and {tensor.dtype}; reduce it first, e.g. with .mean()"
    )


def fetch(tensors: list[Tensor]) -> list[float]:
    """The numbers of many one-element tensors, with one transfer for each device and dtype."""
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault((tensor.device, tensor.dtype), []).append(place)
    result = [0.0] * len(tensors)
    for same in places.values():
        values = torch.stack([tensors[place] for place in same]).tolist()
        for place, value in zip(same, values, strict=True):
            result[place] = float(value)
    return result
