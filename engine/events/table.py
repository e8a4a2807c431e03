"""Table: the scalars of steps that all put the same names in the same order."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from engine.events.history import Column, median
from engine.events.scalar_log import Metric, Name, flatten

MAX_ROWS = 2_000
KEPT_ROWS = 250  # of a table that has more than these
MANY_NAMES = 16  # fewer are read quicker one by one


class Table:
    """A row a step, a column a name: what a hundred names have in common is done once for all.

    The first column is the iteration. The others are taken for the histories of their names when
    someone asks for these.
    """

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        self.metrics = metrics
        # Strings and no more, where a program has put names of NumPy's: JSON takes no other.
        self.names: list[str] = ["" + name for name in flatten(metrics)]  # type: ignore[operator]
        self.places = {name: place for place, name in enumerate(self.names, start=1)}
        self.width = len(self.names) + 1
        self.rows = 0
        self.head: list[Name] = [None, *metrics]
        self._cells = array("d")
        self._successive = 0  # rows at the end, of iterations that follow one another
        self._taken = [0] * self.width  # rows, of each column
        self._iterations = 0, array("q")  # what `take` gave last, and from which row

    def count_rows(self, names: list[Name]) -> int:
        """How many rows of the table there are at the end of these names.

        What a write or an evaluation puts comes once, before the steps that follow it.
        """
        length, start = len(self.head), len(names)
        while self.names and names[start - length : start] == self.head:
            start -= length
        return (len(names) - start) // length

    def add(self, cells: "array[float]") -> None:
        """Add the values of whole rows, in the order of the names, each after its iteration."""
        dates = cells[:: self.width].tolist()
        if dates[-1] - dates[0] == len(dates) - 1 and sorted(set(dates)) == dates:
            follows = self.rows and self._cells[-self.width] == dates[0] - 1
            successive = len(dates) + (self._successive if follows else 0)
            self._successive = min(successive, MAX_ROWS)  # a history keeps no more values
        else:
            self._successive = 1
        self._cells.extend(cells)
        self.rows = len(self._cells) // self.width

    def take(self, name: str) -> Column | None:
        """What is new of a column since the last call; None if nothing is."""
        place = self.places.get(name)
        if place is None or self._taken[place] == self.rows:
            return None
        start = self._taken[place]
        self._taken[place] = self.rows
        return Column(self._cells[start * self.width + place :: self.width], self._dates(start))

    def cut(self) -> int:
        """Forget old rows, all of which were taken; returns how many."""
        excess = self.rows - KEPT_ROWS
        del self._cells[: excess * self.width]
        self.rows = KEPT_ROWS
        self._successive = min(self._successive, KEPT_ROWS)
        self._taken = [KEPT_ROWS] * self.width
        self._iterations = 0, array("q")
        return excess

    def overwrite(self, places: np.ndarray, values: np.ndarray) -> bool:
        """Put others in the place of some values, unless one has been taken: returns whether it was
        done. `places` are counted from the end, the first one first."""
        is_new = -places[0] <= (self.rows - max(self._taken)) * self.width
        if is_new:
            np.frombuffer(self._cells)[places] = values
        return is_new

    def recent(self, name: str, window: int) -> list[float] | None:
        """The values of a name in the last `window` iterations. None if there are not as many rows
        of successive iterations, and one before."""
        place = self.places.get(name)
        if place is None or not 0 < window < self._successive:
            return None
        return self._cells[(self.rows - window) * self.width + place :: self.width].tolist()

    def read(self, window: int) -> tuple[list[float], list[float], int] | None:
        """Of each name the median of the last `window` iterations and the last value; and the last
        iteration. None where `recent` gives None."""
        if not 0 < window < self._successive:
            return None
        width, start = self.width, (self.rows - window) * self.width
        _, *latest = self._cells[-width:]
        at = int(self._cells[-width])
        if len(self.names) < MANY_NAMES:
            columns = [self._cells[start + place :: width] for place in range(1, width)]
            return [median(column.tolist()) for column in columns], latest, at
        # Of a copy, as an array that is looked at from anywhere cannot grow.
        ordered = np.sort(np.frombuffer(self._cells[start:]).reshape(-1, width)[:, 1:], axis=0)
        medians = ordered[window // 2]  # with NaN last
        if window % 2 == 0:
            with np.errstate(all="ignore"):  # values may be infinite
                medians = (medians + ordered[window // 2 - 1]) / 2
        medians = np.where(np.isnan(ordered[-1]), math.nan, medians)
        return medians.tolist(), latest, at

    def _dates(self, start: int) -> "array[int]":
        """The iterations of the rows from `start` on. Most columns are taken from the same one."""
        known, iterations = self._iterations
        if known != start or len(iterations) != self.rows - start:
            iterations = array("q", map(int, self._cells[start * self.width :: self.width]))
            self._iterations = start, iterations
        return iterations


def find_cycle(names: list[Name]) -> list[Metric]:
    """The metrics that come in each iteration up to the end of the list, twice or more; [] if none
    do."""
    last = names[-1]
    if names.count(last) < 2:
        return []
    width = names[::-1].index(last, 1)
    head, *others = cycle = names[-width:]
    metrics = [name for name in others if isinstance(name, str | list)]
    flat = flatten(metrics)
    is_row = head is None and len(metrics) == width - 1 and len(set(flat)) == len(flat)
    return metrics if is_row and names[-2 * width : -width] == cycle else []
