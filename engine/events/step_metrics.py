"""The metrics of one training step: which of them are losses, and how they are stored."""

from typing import Any

import torch

from engine.events.current import get_event_storage
from engine.events.scalar import as_scalar

Metrics = dict[str, Any]  # what a model returns in training: losses, and other scalars
Numbers = dict[str, float | torch.Tensor]  # the same as they are stored


def total_loss(metrics: Metrics) -> Any:
    """The sum of the values that require grad: what training minimises.

    The other values are only stored. Where none requires grad, as in code that hands on detached
    losses, it is the sum of all.
    """
    if len(metrics) == 1:
        return next(iter(metrics.values()))
    losses = [v for v in metrics.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    first, *others = losses or metrics.values()
    return sum(others, start=first) if others else first


def losses_among(metrics: Metrics, numbers: Numbers) -> Numbers:
    """The numbers of those metrics that `total_loss` sums."""
    names = [name for name, value in metrics.items() if _is_minimised(value)] or metrics
    return {name: numbers[name] for name in names}


def mean_of(parts: list[Metrics]) -> Metrics:
    """The losses of a step of several batches, which count as 0 in a batch that has not given them,
    and its other metrics, averaged over the batches that have."""
    columns: dict[str, list[Any]] = {}
    for metrics in parts:
        for name, value in metrics.items():
            is_tensor = isinstance(value, torch.Tensor)
            columns.setdefault(name, []).append(value if is_tensor else as_scalar(name, value))
    counts = {
        name: len(parts) if any(map(_is_minimised, values)) else len(values)
        for name, values in columns.items()
    }
    return {name: sum(values) / counts[name] for name, values in columns.items()}


def find_unfit_loss(metrics: Metrics) -> str:
    """What to say of metrics that cannot be minimised; '' if nothing is wrong with them."""
    for name, value in metrics.items():
        if isinstance(value, list | tuple | dict):
            return f"{name} as a {type(value).__name__}: a loss is one number, such as a mean"
        if isinstance(value, torch.Tensor) and value.requires_grad and value.numel() != 1:
            return f"{name} of shape {tuple(value.shape)}: a loss is one number, such as a mean"
    if not any(map(_is_minimised, metrics.values())):
        names = ", ".join(metrics)
        return f"{names}, of which none has a gradient: is it computed from the weights?"
    return ""


def put_step_metrics(
    metrics: Metrics,
    data_time: float,
    iteration: int,
    prefix: str = "",
    is_stored: bool = True,
    busy_time: float | None = None,
) -> tuple[float | torch.Tensor, Numbers]:
    """Store the metrics of a step, the sum of the losses, the time to get the data and, where there
    are other ranks, the time in which this one did not wait for them.

    Returns the sum of the losses, as `total_loss` defines it, and each metric: as a number where
    no device has to be asked for it. With `is_stored` false nothing is stored.
    """
    total_name = prefix + "total_loss" if prefix else "total_loss"
    numbers: Numbers = {total_name: 0.0}  # shown first, known last
    total: Any = None
    for name, value in metrics.items():
        if type(value) is float:
            numbers[name] = value
            continue
        number = numbers[name] = as_scalar(name, value)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            total = number if total is None else total + number
    if total is None:
        total = sum(numbers[name] for name in metrics)
    if is_stored:
        numbers[total_name] = total
        numbers["data_time"] = numbers["rank_data_time"] = float(data_time)
        if busy_time is not None:
            numbers["busy_time"] = busy_time
        get_event_storage().put_numbers(numbers, iteration)
    return total, numbers


def _is_minimised(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
