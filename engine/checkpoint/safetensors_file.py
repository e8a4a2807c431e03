"""Weights as .safetensors: a format that other programs read, and that can run no code."""

from types import ModuleType

import torch


def as_safetensors(weights: dict[str, torch.Tensor]) -> bytes:
    """The bytes of a .safetensors file with these weights."""
    # Weights that share memory are refused, so each gets its own.
    return import_safetensors().save(
        {name: weight.detach().cpu().contiguous().clone() for name, weight in weights.items()}
    )


def import_safetensors() -> ModuleType:
    """safetensors.torch, which is an extra."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("pip install safetensors, for files that end in .safetensors") from error
    return safetensors.torch
