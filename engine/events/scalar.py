"""What counts as a scalar, and which ones stay on their device for now."""

import numbers
from typing import Any

import numpy as np
import torch


def is_deferred(value: object) -> bool:
    """Whether reading the number would stop a device: true for tensors on accelerators.

    `tools/benchmark.py` and tests replace this to drive the path of accelerators on the CPU.
    """
    return isinstance(value, torch.Tensor) and not value.is_cpu


def as_scalar(name: str, value: Any) -> float | torch.Tensor:
    """A float, or for a tensor on an accelerator a detached copy of it as it is at this moment.

    Refuses what is not one real number, naming the metric.
    """
    # The exact types of most scalars first: the abstract numbers.Real is slow to ask.
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, torch.Tensor):
        if is_deferred(value):
            if value.numel() != 1 or value.dtype.is_complex:
                raise _not_one_number(name, value)
            return value.detach().reshape(()).clone()
        try:
            return float(value.item())
        except (RuntimeError, TypeError):  # more or less than one element; complex
            raise _not_one_number(name, value) from None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (numbers.Real, np.bool_)):
        return float(value)
    raise TypeError(
        f"metric {name!r} must be a Python or NumPy number or a one-element tensor, "
        f"got {type(value).__name__}: {value!r:.80}"
    )


def _not_one_number(name: str, tensor: torch.Tensor) -> ValueError:
    return ValueError(
        f"metric {name!r} must be one real number, got a tensor of shape {tuple(tensor.shape)} "
        f"and {tensor.dtype}; reduce it first, e.g. with .mean()"
    )


def fetch(tensors: list[torch.Tensor]) -> list[float]:
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
