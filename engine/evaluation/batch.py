"""What evaluators read from a batch and from what a model gave for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def get_entry(inputs: Any, key: str, dimensions: int) -> torch.Tensor:
    """The tensor under a key of a batch."""
    if not isinstance(inputs, Mapping):
        raise TypeError(f"expected a batch as a dict with {key!r}, got {type(inputs).__name__}")
    if key not in inputs:
        raise KeyError(f"the batch has no {key!r}, only {', '.join(map(repr, inputs))}")
    entry = inputs[key]
    if not isinstance(entry, torch.Tensor) or entry.ndim != dimensions:
        came = tuple(entry.shape) if isinstance(entry, torch.Tensor) else type(entry).__name__
        raise ValueError(f"expected {key!r} as a tensor of {dimensions} dimensions, got {came}")
    return entry


def get_logits(outputs: Any, shape: Sequence[int]) -> torch.Tensor:
    """A model's logits: its output, or the entry "logits" of it. Shaped `shape` × classes."""
    logits = outputs
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise KeyError(
                f"the model's output has no 'logits', only {', '.join(map(repr, outputs))}"
            )
        logits = outputs["logits"]
    if not isinstance(logits, torch.Tensor):
        raise TypeError(
            f"expected logits as a tensor or a dict with 'logits' from the model, "
            f"got {type(logits).__name__}"
        )
    if logits.shape[:-1] != torch.Size(shape):
        raise ValueError(
            f"expected logits of shape {' × '.join(map(str, shape))} × classes, "
            f"got {' × '.join(map(str, logits.shape))}"
        )
    return logits


def count_samples(batch: Any) -> int:
    """How many samples a batch has: its length, or that of its first entry that has one."""
    if isinstance(batch, Mapping):
        for entry in batch.values():
            if (length := _length(entry)) is not None:
                return length
    elif isinstance(batch, list) and all(isinstance(sample, Mapping) for sample in batch):
        return len(batch)
    raise TypeError(
        f"expected a batch as a dict of tensors or a list of samples (dicts), got {batch!r:.80}"
    )


def select_samples(batch: Any, indices: Sequence[int], size: int) -> Any:
    """Some samples of a batch of `size`, as a batch; what has another length is left whole."""
    if isinstance(batch, Mapping):
        return {key: select_samples(value, indices, size) for key, value in batch.items()}
    if _length(batch) != size:
        return batch
    return batch[list(indices)] if isinstance(batch, torch.Tensor) else [batch[i] for i in indices]


def _length(entry: Any) -> int | None:
    if isinstance(entry, torch.Tensor):
        return len(entry) if entry.ndim else None
    return len(entry) if isinstance(entry, (list, tuple)) else None
