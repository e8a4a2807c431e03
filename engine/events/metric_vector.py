"""MetricVector: the metrics of a rank in one vector, whose sum over ranks tells all about them."""

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from engine.events.history import Column


class Reduced(NamedTuple):
    """Of all ranks together; first the means, then the times, with a row for each name."""

    values: np.ndarray  # name, slot
    counts: np.ndarray  # name, slot: how many ranks have a value there
    last: np.ndarray  # name: the sum over ranks of the iterations that slot 0 is of
    seconds: np.ndarray  # time, rank, slot


class MetricVector:
    """A row of slots for each name, of which the mean or, for times, the largest is wanted.

    A row is `slots` values, as many counts (0 or 1), and a number for slot 0 (see `fill_rows`). As
    a sum over ranks cannot tell what is largest, times have the values of each rank side by side.
    """

    def __init__(
        self, means: Sequence[str], times: Sequence[str], slots: int, rank: int, world_size: int
    ) -> None:
        self.names = [*means, *times]
        self._means, self._times = means, times
        self._slots = slots
        self._rank, self._world_size = rank, world_size

    def pack(self, columns: Mapping[str, Column], window: range, header: float) -> np.ndarray:
        """The vector of this rank. The header is a number of the caller's, in place 0."""
        slots, count = self._slots, len(self._means)
        rows = fill_rows([columns.get(name) for name in self.names], window)
        times = np.zeros((len(self._times), self._world_size * slots + slots + 1))
        times[:, self._rank * slots : (self._rank + 1) * slots] = rows[count:, :slots]
        times[:, self._world_size * slots :] = rows[count:, slots:]
        return np.concatenate([[header], rows[:count].ravel(), times.ravel()])

    def unpack(self, total: np.ndarray, own: np.ndarray) -> Reduced:
        """What the sum over ranks tells; `own` is this rank's vector."""
        slots, size = self._slots, self._world_size
        end = 1 + len(self._means) * (2 * slots + 1)
        rows = total[1:end].reshape(len(self._means), 2 * slots + 1)
        means = rows[:, :slots] / np.maximum(rows[:, slots:-1], 1)
        mine = own[1:end].reshape(rows.shape)[:, :slots]
        # A value that is the same on all ranks, as of an evaluation, must not change by rounding.
        with np.errstate(invalid="ignore"):
            np.copyto(means, mine, where=abs(means - mine) <= 1e-12 * abs(mine))
        time_rows = total[end:].reshape(len(self._times), (size + 1) * slots + 1)
        seconds = time_rows[:, : size * slots].reshape(len(self._times), size, slots)
        counts = np.concatenate([rows[:, slots:], time_rows[:, size * slots :]])
        values = np.concatenate([means, seconds.max(1)])
        return Reduced(values, counts[:, :-1], counts[:, -1], seconds)


def fill_rows(columns: Sequence[Column | None], window: range) -> np.ndarray:
    """A row for each name: slot 1 is the first iteration of the window, and so on.

    Where the window has none of the values, the last one is in slot 0, and the row ends with its
    iteration.
    """
    slots, iterations = len(window) + 1, array("q", window)
    rows = np.zeros((len(columns), 2 * slots + 1))
    usual: dict[int, list[int]] = {}  # by number of values, names with one in each iteration
    for place, column in enumerate(columns):
        if column is None:
            continue
        count = len(column.values)
        if column.iterations == iterations[-count:]:
            usual.setdefault(count, []).append(place)
        else:
            rows[place] = _fill_slots(column, window)
    for count, places in usual.items():
        values = b"".join([columns[place].values for place in places])  # type: ignore[union-attr]
        rows[places, slots - count : slots] = np.frombuffer(values).reshape(-1, count)
        rows[places, 2 * slots - count : 2 * slots] = 1.0
    return rows


def _fill_slots(column: Column, window: range) -> list[float]:
    values, iterations = column
    by_slot: dict[int, list[float]] = {}
    for value, iteration in zip(values, iterations, strict=True):
        if iteration in window:
            by_slot.setdefault(iteration - window.start + 1, []).append(value)
    last = 0 if by_slot else iterations[-1]
    slots, counts = [0.0] * (len(window) + 1), [0.0] * (len(window) + 1)
    for slot, several in (by_slot or {0: [values[-1]]}).items():
        slots[slot], counts[slot] = sum(several) / len(several), 1.0
    return [*slots, *counts, last]
