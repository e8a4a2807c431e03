"""HistoryBuffer: the recent values of one scalar, and aggregates of all that ever came."""

import math
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Column(NamedTuple):
    """Values of one scalar, with their iterations."""

    values: "array[float]"
    iterations: "array[int]"


class HistoryBuffer:
    """The last `max_length` values of a scalar with their iterations, and the average of all.

    An update costs a fraction of a microsecond however long the run. `catch_up`, where given, is
    called before each read: a storage hands over then what it has put aside; `changed` after an
    update by hand.
    """

    def __init__(
        self,
        max_length: int = 1000000,
        *,
        catch_up: Callable[[], None] | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self._max_length = max_length
        self._limit = max_length + max(max_length // 4, 16)  # longer than this calls for a trim
        self._catch_up = catch_up or _nothing
        self._changed = changed or _nothing
        # Arrays hold no objects: the floats of a step die young, and their memory stays in cache.
        self._values = array("d")
        self._iterations = array("q")
        self._evicted = 0
        self._sum, self._summed = 0.0, 0  # of how many values from the first on

    def update(self, value: float, iteration: float | None = None) -> None:
        """Add a value; the iteration defaults to the number of updates so far."""
        self._catch_up()
        place = self._evicted + len(self._values)
        self.extend([float(value)], [place if iteration is None else int(iteration)])
        self._changed()

    def extend(self, values: Iterable[float], iterations: Iterable[int]) -> None:
        """Add values with their iterations, oldest first; arrays are the quickest."""
        self._values.extend(values)
        self._iterations.extend(iterations)
        if len(self._values) > self._limit:
            self._trim()

    @property
    def count(self) -> int:
        """How many values were ever added."""
        self._catch_up()
        return self._evicted + len(self._values)

    @property
    def latest_iteration(self) -> int:
        """The iteration of the latest value."""
        self._catch_up()
        return self._iterations[-1]

    def latest(self) -> float:
        """The value added last."""
        self._catch_up()
        return self._values[-1]

    def median(self, window_size: int) -> float:
        """The median of the last `window_size` values; NaN if one of them is."""
        return median(self._last(window_size))

    def avg(self, window_size: int) -> float:
        """The mean of the last `window_size` values."""
        window = self._last(window_size)
        return sum(window) / len(window) if window else math.nan

    def global_avg(self) -> float:
        """The mean of all values ever added, also of those no longer kept; 0 of none."""
        self._catch_up()
        self._bring_sum_up_to_date()
        return self._sum / max(self._summed, 1)

    def recent(self, iterations: int) -> list[float]:
        """The values of the last so many iterations, going back until one is older."""
        self._catch_up()
        return self._window(iterations)

    def reading(self, iterations: int) -> tuple[float, int, int]:
        """The median over the last so many iterations, the latest iteration, and the count.

        Over 0 it is the latest value. It does not `catch_up`: a storage asks all its histories.
        """
        values = self._values
        value = median(self._window(iterations)) if iterations > 0 else values[-1]
        return value, self._iterations[-1], self._evicted + len(values)

    def values(self) -> list[tuple[float, int]]:
        """The kept (value, iteration) pairs, oldest first."""
        kept = self._last(self._max_length)
        return list(zip(kept, self._iterations[-len(kept) :], strict=True))

    def replace_last(self, count: int, column: Column) -> None:
        """Put others in the place of the last `count` values. It does not `catch_up`."""
        start = len(self._values) - count
        summed = self._summed - self._evicted - start
        if summed > 0:
            self._sum -= sum(self._values[start : start + summed])
            self._summed -= summed
        self._values[start:], self._iterations[start:] = column
        if len(self._values) > self._limit:
            self._trim()

    @property
    def _data(self) -> list[tuple[float, int]]:  # fvcore's name, which code of users reads
        return self.values()

    def __getstate__(self) -> dict:
        self._catch_up()
        # Its storage is not a part of it.
        return {**vars(self), "_catch_up": _nothing, "_changed": _nothing}

    def state_dict(self) -> dict:
        """The kept values and the aggregates of all."""
        self._catch_up()
        self._trim()
        return {
            "values": self._values.tolist(),
            "iterations": self._iterations.tolist(),
            "count": self._summed,
            "sum": self._sum,
        }

    def load_state_dict(self, state: dict) -> None:
        self._values = array("d", state["values"])
        self._iterations = array("q", state["iterations"])
        self._evicted = state["count"] - len(self._values)
        self._sum, self._summed = state["sum"], state["count"]

    def _window(self, iterations: int) -> list[float]:
        at = self._iterations
        latest = at[-1]
        # Most scalars have one value in each iteration, and a slice is quicker than a search.
        is_short = iterations < len(at) and iterations <= self._max_length
        if is_short and at[-iterations - 1 :] == _counting_up(latest, iterations + 1):
            return self._values[-iterations:].tolist()
        count = 0
        for one in reversed(at):
            if one <= latest - iterations:
                break
            count += 1
        return self._values[-min(count, self._max_length) :].tolist()

    def _last(self, window_size: int) -> list[float]:
        self._catch_up()
        return self._values[-min(window_size, self._max_length) :].tolist()

    def _bring_sum_up_to_date(self) -> None:
        # One after the other, as they came: whenever that is done, the sum is the same. Of a copy,
        # as an array that is looked at from anywhere cannot grow.
        new = np.frombuffer(self._values[self._summed - self._evicted :])
        with np.errstate(all="ignore"):  # values may be infinite
            self._sum = float(np.add.accumulate(np.append(self._sum, new))[-1])
        self._summed = self._evicted + len(self._values)

    def _trim(self) -> None:
        """Forget all but the last `max_length` values; the average of all still has them."""
        self._bring_sum_up_to_date()
        excess = max(len(self._values) - self._max_length, 0)
        del self._values[:excess]
        del self._iterations[:excess]
        self._evicted += excess


def _nothing() -> None:
    pass


@lru_cache(maxsize=8)
def _counting_up(last: int, count: int) -> "array[int]":
    return array("q", range(last - count + 1, last + 1))


def median(values: list[float]) -> float:
    """The median; NaN if a value is, or there is none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    if math.isnan(sum(ordered)) and any(map(math.isnan, ordered)):
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
