"""States that are not worth keeping: weights or moments that are NaN or infinite."""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn

from engine.parallel.fsdp import is_sharded_tensor


def first_nonfinite(data: dict[str, Any], unchecked: Collection[str] = ()) -> str | None:
    """Name of the first tensor of the model, or of an optimizer anywhere, that is not finite.

    `unchecked` names tensors of the model that may hold anything, such as masks of -inf.
    """
    for name, tensor in data.get("model", {}).items():
        if name not in unchecked and not is_finite(tensor):
            return name
    for where, tensor in _optimizer_tensors(data, ""):
        if not is_finite(tensor):
            return where
    return None


def is_finite(value: Any) -> bool:
    """Whether a tensor, if it is one of floats, holds neither NaN nor infinity.

    Of a sharded one only this rank's part is looked at.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return True
    if is_sharded_tensor(value):
        value = value.to_local()  # type: ignore[attr-defined]
    # A sum is quick and needs no memory; only where it is not finite, as it may overflow, are all
    # elements looked at. Not in float64, which not all devices have.
    return bool(value.sum(dtype=torch.float32).isfinite() or value.isfinite().all())


def infinite_constants(model: nn.Module) -> set[str]:
    """Names of the buffers and frozen parameters of a model that are not finite."""
    tensors = chain(
        model.named_buffers(remove_duplicate=False), model.named_parameters(remove_duplicate=False)
    )
    return {name for name, one in tensors if not one.requires_grad and not is_finite(one)}


def _optimizer_tensors(value: Any, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    inside = "optimizer" in where
    if isinstance(value, dict):
        for key, one in value.items():
            if inside or key != "model":
                yield from _optimizer_tensors(one, f"{where}[{key!r}]" if where else str(key))
    elif inside and isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _optimizer_tensors(one, f"{where}[{number}]")
    elif inside and isinstance(value, torch.Tensor):
        yield where, value
