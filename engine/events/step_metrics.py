"""The metrics of one training step: which of them are losses, and how they are stored."""

from typing import Any

import torch

from engine.events import scalar
from engine.events.storage import get_event_storage

Metrics = dict[str, Any]  # what a model returns in training: losses, and other scalars


def total_loss(metrics: Metrics) -> Any:
    """The sum of the values that require grad: what training minimises.

    The other values are only stored. Where none requires grad, as in code that hands on detached
    losses, it is the sum of all.
    """
    losses = [v for v in metrics.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    first, *others = losses or metrics.values()
    return sum(others, start=first) if others else first


def mean_of(parts: list[Metrics]) -> Metrics:
    """Each metric averaged over the batches of a step that have it."""
    columns: dict[str, list[Any]] = {}
    for metrics in parts:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


def put_step_metrics(
    metrics: Metrics, data_time: float, iteration: int, prefix: str = "", is_stored: bool = True
) -> float | torch.Tensor:
    """Store the metrics of a step, the sum of the losses and the time to get the data.

    Returns the sum of the losses, as `total_loss` defines it: a number where no device has to be
    asked for it. With `is_stored` false that is all it does.
    """
    put = get_event_storage().put_scalar if is_stored else _convert
    losses = []
    values = []
    for name, value in metrics.items():
        number = put(name, value, True, iteration)
        values.append(number)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            losses.append(number)
    first, *others = losses or values
    total = sum(others, start=first) if others else first
    put("data_time", data_time, True, iteration)
    put("rank_data_time", data_time, True, iteration)
    if prefix or "total_loss" not in metrics:
        put(f"{prefix}total_loss", total, True, iteration)
    return total


def _convert(name: str, value: Any, smoothing_hint: bool, iteration: int) -> float | torch.Tensor:
    return scalar.as_scalar(name, value)
