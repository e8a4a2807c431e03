"""Curves: metrics thinned out to what a screen can show, with their last and best values."""

from dataclasses import dataclass

import numpy as np

LOWER_IS_BETTER = ("loss", "error", "time", "perplexity")
"""Parts of the names of metrics whose best value is the lowest."""

WITHOUT_BEST = ("eta_seconds", "lr")
"""Metrics of which no value is better than another."""

Point = tuple[int, float | None]
"""An iteration and a value; None if that is not finite."""


@dataclass(frozen=True)
class Curve:
    """What a page shows of one metric of one run."""

    points: list[Point]
    means: list[Point]  # over a bucket each, to be smoothed; empty if `points` are all there are
    last: Point
    best: Point | None  # its value is None if none is finite


def is_lower_better(name: str) -> bool:
    """Whether the best value of a metric is its lowest, as its name tells."""
    return any(part in name.lower() for part in LOWER_IS_BETTER)


def make_curve(name: str, iterations: np.ndarray, values: np.ndarray, buckets: int) -> Curve:
    """A curve of about four points a bucket, from all values of a metric."""
    places, table, best = thin(values, buckets), _by_bucket(values, buckets), -1
    if not np.isnan(values).all():
        best = int(np.nanargmin(values) if is_lower_better(name) else np.nanargmax(values))
    with np.errstate(invalid="ignore", over="ignore"):  # 0 / 0 is the mean of a gap
        means = np.nansum(table, axis=1) / np.sum(~np.isnan(table), axis=1)
    middles = np.arange(len(table)) * table.shape[1] + table.shape[1] // 2
    at = iterations[np.minimum(middles, len(values) - 1)]
    return Curve(
        points=_points(iterations[places], values[places]),
        means=_points(at, means) if len(places) < len(values) else [],
        last=_points(iterations[[-1]], values[[-1]])[0],
        best=None if name in WITHOUT_BEST else _points(iterations[[best]], values[[best]])[0],
    )


def thin(values: np.ndarray, buckets: int) -> np.ndarray:
    """Where the values are that a drawing needs, in their order.

    These are the first, last, lowest and highest of each bucket, so that spikes stay, and one NaN
    wherever there are some between two of these, so that gaps stay. Buckets are of the same size,
    but for the last. Where they would hold four values or fewer, all stay.
    """
    if len(values) <= 4 * buckets:
        return np.arange(len(values))
    table = _by_bucket(values, buckets)
    count, width = len(values), table.shape[1]
    starts = np.arange(len(table)) * width
    is_kept = np.zeros(count, dtype=bool)
    is_kept[starts] = is_kept[np.minimum(starts + width, count) - 1] = True
    is_kept[starts + np.where(np.isnan(table), np.inf, table).argmin(axis=1)] = True
    is_kept[starts + np.where(np.isnan(table), -np.inf, table).argmax(axis=1)] = True
    gaps = np.flatnonzero(np.isnan(values))
    _, first_after_kept = np.unique(np.cumsum(is_kept)[gaps], return_index=True)
    is_kept[gaps[first_after_kept]] = True
    return np.flatnonzero(is_kept)


def _by_bucket(values: np.ndarray, buckets: int) -> np.ndarray:
    """The values with a row for each bucket; the last row ends with NaN."""
    width = -(-len(values) // buckets)
    rows = -(-len(values) // width)
    return np.append(values, np.full(rows * width - len(values), np.nan)).reshape(rows, width)


def _points(iterations: np.ndarray, values: np.ndarray) -> list[Point]:
    return [
        (iteration, float(f"{value:.6g}") if np.isfinite(value) else None)
        for iteration, value in zip(iterations.tolist(), values.tolist(), strict=True)
    ]
