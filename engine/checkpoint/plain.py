"""Checkpoints hold plain values, so that they load without running code."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.serialization import get_safe_globals

from engine.parallel.fsdp import is_sharded_tensor

_PYTHON = {type(None), bool, int, float, complex, str}
_PLAIN = _PYTHON | {torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size}


CopyTensor = Callable[[torch.Tensor, str], torch.Tensor]


def as_plain(value: Any, where: str, copy: CopyTensor | None = None) -> Any:
    """The value with NumPy numbers as Python ones; what `weights_only` would refuse is refused.

    `where` names the value in the error. Tensors are handed on as they are, or as what `copy`
    makes of them. What was declared with `torch.serialization.add_safe_globals` is handed on.
    """
    is_tensor = isinstance(value, torch.Tensor)
    if copy is not None and is_tensor and (type(value) in _PLAIN or is_sharded_tensor(value)):
        return copy(value, where)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and type(value.item()) in _PYTHON:
        return value.item()
    if isinstance(value, dict):
        plain: Any = {
            as_plain(key, where): as_plain(one, f"{where}[{key!r}]", copy)
            for key, one in value.items()
        }
        if hasattr(value, "_metadata"):  # of a module's state dict: the versions of its parts
            plain = OrderedDict(plain)
            plain._metadata = as_plain(dict(value._metadata), f"{where}._metadata")
        return Counter(plain) if type(value) is Counter else plain
    if type(value) is set and torch.__version__ >= "2.6":  # older ones would not load it
        return {as_plain(one, where) for one in value}
    if type(value) in (list, tuple):
        return type(value)(as_plain(one, f"{where}[{i}]", copy) for i, one in enumerate(value))
    if type(value) in get_safe_globals():
        return value
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds "
        "tensors, numbers, strings, lists, tuples, sets and dicts only; convert it in state_dict()"
    )


def whole(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """The tensor, which is refused where it is sharded: a file would have this rank's part only."""
    if is_sharded_tensor(tensor):
        raise TypeError(
            f"{where} is sharded, and no model of the Checkpointer is: give it the model that this "
            "belongs to, by a name, so that all ranks save together"
        )
    return tensor
