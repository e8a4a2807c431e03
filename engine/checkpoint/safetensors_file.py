"""Weights as .safetensors: a format that other programs read, and that can run no code."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch


def as_safetensors(weights: Mapping[str, Any]) -> bytes:
    """The bytes of a .safetensors file with these weights; what is no tensor is left out, as the
    format has no place for extra states of modules."""
    tensors = {name: weight for name, weight in weights.items() if torch.is_tensor(weight)}
    # Weights that share memory are refused, so each gets its own.
    return import_safetensors().save(
        {name: weight.detach().cpu().contiguous().clone() for name, weight in tensors.items()}
    )


def import_safetensors() -> ModuleType:
    """safetensors.torch, which is an extra."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("pip install safetensors, for files that end in .safetensors") from error
    return safetensors.torch
