"""Checkpoints hold plain values, so that they load without running code."""

import numbers
from typing import Any

import numpy as np
import torch

_LEAVES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def as_plain(value: Any, where: str) -> Any:
    """The value with NumPy numbers as Python ones; what `weights_only` would refuse is refused.

    `where` names the value in the error. Tensors are handed on as they are.
    """
    if isinstance(value, torch.Tensor) or value is None or type(value) in _LEAVES:
        return value
    if isinstance(value, (np.generic, numbers.Number)) and hasattr(value, "item"):
        return value.item()
    if isinstance(value, dict):
        return {
            as_plain(key, where): as_plain(one, f"{where}[{key!r}]") for key, one in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(as_plain(one, f"{where}[{i}]") for i, one in enumerate(value))
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds "
        "tensors, numbers, strings, lists, tuples and dicts only; convert it in state_dict()"
    )
