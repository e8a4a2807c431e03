"""The metrics of one training step: which of them are losses, and how they are stored."""

from typing import Any

import torch

from . import scalar
from .storage import get_event_storage

Metrics = dict[str, Any]  # what a model returns in training: losses, and other scalars


def losses_in(metrics: Metrics) -> Metrics:
    """The values that require grad, which training minimises; the others are only stored.

    All of them where none requires grad: so it is in code that hands on detached losses.
    """
    losses = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, torch.Tensor) and value.requires_grad
    }
    return losses or metrics


def sum_of(losses: Metrics) -> Any:
    """The sum of the values."""
    first, *others = losses.values()
    return sum(others, start=first) if others else first


def mean_of(parts: list[Metrics]) -> Metrics:
    """Each metric averaged over the batches of a step that have it."""
    columns: dict[str, list[Any]] = {}
    for metrics in parts:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


def snapshot(metrics: Metrics) -> tuple[Metrics, float | torch.Tensor]:
    """The metrics without their graph, as numbers where no device has to be asked; and the sum
    of the losses among them."""
    values = {
        name: value.detach() if scalar.is_deferred(value) else scalar.as_scalar(name, value)
        for name, value in metrics.items()
    }
    return values, sum_of({name: values[name] for name in losses_in(metrics)})


def put_step_metrics(
    values: Metrics,
    total_loss: float | torch.Tensor,
    data_time: float,
    iteration: int,
    prefix: str = "",
) -> None:
    """Store the metrics of a step under their names, their sum, and the time to get the data."""
    put = get_event_storage().put_scalar
    put("data_time", data_time, cur_iter=iteration)
    put("rank_data_time", data_time, cur_iter=iteration)
    total_name = f"{prefix}total_loss"
    put(total_name, total_loss, cur_iter=iteration)
    for name, value in values.items():
        if name != total_name:
            put(name, value, cur_iter=iteration)
