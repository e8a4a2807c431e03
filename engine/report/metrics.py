"""The metrics of a run, read from its metrics.json."""

import json
from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np

Series = tuple[np.ndarray, np.ndarray]
"""Iterations and values of a metric; NaN where the value was not finite."""


def read_metrics(path: Path) -> dict[str, Series]:
    """All values in a metrics.json, by name.

    A last line that is no JSON is what a killed process was writing: it is left out. Any other such
    line is a ValueError with its number.
    """
    points: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                iteration = record.pop("iteration")
                for name, value in record.items():
                    series = points[name]  # iteration and value by turns: there may be 10^7
                    series.append(iteration)
                    series.append(np.nan if value is None else value)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                if isinstance(error, ValueError) and not file.read(1):
                    break
                raise ValueError(
                    f'{path}, line {number}: expected {{"iteration": 19, "loss": 0.5, …}}, got '
                    f"{line[:60].decode(errors='replace')!r}: mend or delete that line"
                ) from error
    return {name: _split(points.pop(name)) for name in list(points)}  # each is freed in its turn


def _split(series: "array[float]") -> Series:
    iterations, values = np.frombuffer(series).reshape(-1, 2).T
    return iterations.astype(np.int64), np.where(np.isfinite(values), values, np.nan)
