"""HistoryBuffer: the recent values of one scalar, and aggregates of all that ever came."""

import math
from itertools import takewhile

import torch

from .scalar import fetch


class HistoryBuffer:
    """The last `max_length` values of a scalar with their iterations, and the average of all.

    An update costs a fraction of a microsecond however long the run. A value may be a tensor on a
    device: its number is fetched when somebody reads the buffer, or by `EventStorage.sync`
    together with all others.
    """

    def __init__(self, max_length: int = 1000000) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length = max_length
        # Two lists rather than one of pairs: nothing here for the garbage collector to track.
        self.raw_values: list[float | torch.Tensor] = []
        self.iterations: list[int] = []
        self.deferred: list[int] = []  # the places of tensors, counted from the first update on
        self.limit = max_length + max(max_length // 4, 16)  # longer than this calls for a trim
        self._evicted = 0
        self._sum, self._summed = 0.0, 0  # of how many values from the first on
        self._smoothed = ((0, 0), 0.0)  # count and iterations of the last `smoothed`, its result

    def update(self, value: float, iteration: float | None = None) -> None:
        """Add a value; the iteration defaults to the number of updates so far."""
        self.iterations.append(self.count if iteration is None else int(iteration))
        self.raw_values.append(float(value))
        if len(self.raw_values) > self.limit:
            self.trim()

    def trim(self) -> None:
        """Forget all but the last `max_length` values; the average of all still has them."""
        self.global_avg()
        excess = len(self.raw_values) - self.max_length
        del self.raw_values[:excess]
        del self.iterations[:excess]
        self._evicted += excess

    @property
    def count(self) -> int:
        """How many values were ever added."""
        return self._evicted + len(self.raw_values)

    @property
    def latest_iteration(self) -> int:
        """The iteration of the latest value."""
        return self.iterations[-1]

    def latest(self) -> float:
        """The value added last."""
        return self.last(1)[0]

    def median(self, window_size: int) -> float:
        """The median of the last `window_size` values; NaN if one of them is."""
        return _median(self.last(window_size))

    def smoothed(self, iterations: int) -> float:
        """The median over the last so many iterations; computed once for all that ask."""
        key = (self.count, iterations)
        if self._smoothed[0] != key:
            window = self.count_since(self.iterations[-1] - iterations)
            self._smoothed = (key, _median(self.last(window)))
        return self._smoothed[1]

    def avg(self, window_size: int) -> float:
        """The mean of the last `window_size` values."""
        window = self.last(window_size)
        return sum(window) / len(window)

    def global_avg(self) -> float:
        """The mean of all values ever added, also of those no longer kept."""
        if self._summed < self.count:
            self.last(1)  # has the tensors turned into numbers
            self._sum += float(sum(self.raw_values[self._summed - self.count :]))
            self._summed = self.count
        return self._sum / self.count

    def last(self, window_size: int) -> list[float]:
        """The last `window_size` values, oldest first."""
        if self.deferred:
            self.resolve(fetch(self.deferred_tensors()))
        return self.raw_values[-min(window_size, self.max_length) :]  # type: ignore[return-value]

    def values(self) -> list[tuple[float, int]]:
        """The kept (value, iteration) pairs, oldest first."""
        kept = self.last(self.max_length)
        return list(zip(kept, self.iterations[-len(kept) :], strict=True))

    def count_since(self, iteration: int) -> int:
        """How many of the latest values came after `iteration`, going back until one did not."""
        iterations = self.iterations
        count = iterations[-1] - iteration
        # Most scalars have one value an iteration: then there is nothing to count.
        if 0 < count < len(iterations) and iterations[-count - 1] <= iteration < iterations[-count]:
            return count
        return sum(1 for _ in takewhile(lambda one: one > iteration, reversed(iterations)))

    def state_dict(self) -> dict:
        """The kept values and the aggregates of all."""
        self.trim()
        return {
            "values": list(self.raw_values),
            "iterations": list(self.iterations),
            "count": self.count,
            "sum": self._sum,
        }

    def load_state_dict(self, state: dict) -> None:
        self.raw_values[:] = state["values"]
        self.iterations[:] = state["iterations"]
        self._evicted = state["count"] - len(self.raw_values)
        self._sum, self._summed = state["sum"], state["count"]
        self.deferred.clear()
        self._smoothed = ((0, 0), 0.0)

    def resolve(self, numbers: list[float]) -> list[tuple[float, int]]:
        """Put numbers in the places of the tensors; returns them with their iterations."""
        places = [place - self._evicted for place in self.deferred]
        self.deferred.clear()
        for place, number in zip(places, numbers, strict=True):
            self.raw_values[place] = number
        return [(self.raw_values[place], self.iterations[place]) for place in places]  # type: ignore[misc]

    def deferred_tensors(self) -> list[torch.Tensor]:
        """The values that are still tensors."""
        return [self.raw_values[place - self._evicted] for place in self.deferred]  # type: ignore[misc]


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    if math.isnan(sum(ordered)) and any(map(math.isnan, ordered)):
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
