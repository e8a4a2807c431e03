"""Table: the scalars of steps that all put the same names in the same order."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from engine.events.history import Column

MAX_ROWS = 400
KEPT_ROWS = 100  # of a table that has more than these


class Table:
    """A row a step, a column a name: what a hundred names have in common is done once for all.

    A column is taken for the history of its name when someone asks for that.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self.places = {name: place for place, name in enumerate(names)}
        self.rows = 0
        self._values = array("d")
        self._iterations = array("q")
        self._taken = [0] * len(self.names)  # rows, of each column

    def find_start(self, names: list[str]) -> int:
        """From where to their end these names are rows of the table; their number if they are not.

        What a write or an evaluation puts comes once, before the steps that follow it.
        """
        count, end = len(self.names), len(names)
        if count and names[-count:] == self.names:
            for start in range(end % count, min(end, 4 * count), count):
                if names[start:] == self.names * ((end - start) // count):
                    return start
        return end

    def add(self, column: Column) -> None:
        """Add the values of whole rows, in the order of the names."""
        self._values.extend(column.values)
        self._iterations.extend(column.iterations)
        self.rows = len(self._values) // len(self.names)

    def take(self, name: str) -> Column | None:
        """What is new of a column since the last call; None if nothing is."""
        place = self.places.get(name)
        if place is None or self._taken[place] == self.rows:
            return None
        count, start = len(self.names), self._taken[place]
        self._taken[place] = self.rows
        part = slice(start * count + place, None, count)
        return Column(self._values[part], self._iterations[part])

    def cut(self) -> int:
        """Forget old rows, all of which were taken; returns how many."""
        excess = self.rows - KEPT_ROWS
        del self._values[: excess * len(self.names)]
        del self._iterations[: excess * len(self.names)]
        self.rows = KEPT_ROWS
        self._taken = [KEPT_ROWS] * len(self.names)
        return excess

    def overwrite(self, places: np.ndarray, values: np.ndarray) -> bool:
        """Put others in the place of some values, unless one has been taken: returns whether it was
        done. `places` are counted from the end, the first one first."""
        is_new = -places[0] <= (self.rows - max(self._taken)) * len(self.names)
        if is_new:
            np.frombuffer(self._values)[places] = values
        return is_new

    def read(self, window: int) -> tuple[list[float], list[float], list[int]] | None:
        """Of each name the median of the last `window` iterations, the last value, and its
        iteration. None if there are not as many rows of successive iterations, and one before."""
        if not 0 < window < self.rows:
            return None
        count = len(self.names)
        # Of copies, as arrays that are looked at from anywhere cannot grow.
        iterations = np.frombuffer(self._iterations[-(window + 1) * count :], np.int64)
        iterations = iterations.reshape(-1, count)
        if (iterations[1:] - iterations[:-1] != 1).any():
            return None
        values = np.frombuffer(self._values[-window * count :]).reshape(-1, count)
        ordered = np.sort(values, axis=0)  # with NaN last
        medians = ordered[window // 2]
        if window % 2 == 0:
            with np.errstate(all="ignore"):  # values may be infinite
                medians = (medians + ordered[window // 2 - 1]) / 2
        medians = np.where(np.isnan(ordered[-1]), math.nan, medians)
        return medians.tolist(), values[-1].tolist(), iterations[-1].tolist()


def find_cycle(names: list[str]) -> list[str]:
    """The names that come again and again up to the end of the list, twice or more; [] if none."""
    if names.count(names[-1]) < 2:
        return []
    count = names[::-1].index(names[-1], 1)
    cycle = names[-count:]
    is_cycle = len(set(cycle)) == count and names[-2 * count : -count] == cycle
    return cycle if is_cycle else []
