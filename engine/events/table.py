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
        self.names: list[str] = flatten(metrics)  # type: ignore[assignment]
        self.places = {name: place for place, name in enumerate(self.names, start=1)}
        self.width = len(self.names) + 1
        self.rows = 0
        self.head: list[Name] = [None, *metrics]
        self._cells = np.empty((0, self.width))  # with room for more rows: new memory is slow
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
            follows = self.rows and self._cells[self.rows - 1, 0] == dates[0] - 1
            successive = len(dates) + (self._successive if follows else 0)
            self._successive = min(successive, MAX_ROWS)  # a history keeps no more values
        else:
            self._successive = 1
        start, self.rows = self.rows, self.rows + len(dates)
        if self.rows > len(self._cells):
            room = np.empty((self.rows + MAX_ROWS, self.width))
            room[:start] = self._cells[:start]
            self._cells = room
        self._cells[start : self.rows] = np.frombuffer(cells).reshape(-1, self.width)

    def take(self, name: str) -> Column | None:
        """What is new of a column since the last call; None if nothing is."""
        place = self.places.get(name)
        if place is None or self._taken[place] == self.rows:
            return None
        start = self._taken[place]
        self._taken[place] = self.rows
        values = array("d", self._cells[start : self.rows, place].tobytes())
        return Column(values, self._dates(start))

    def cut(self) -> int:
        """Forget old rows, all of which were taken; returns how many."""
        excess = self.rows - KEPT_ROWS
        self._cells[:KEPT_ROWS] = self._cells[excess : self.rows].copy()
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
            self._cells[: self.rows].reshape(-1)[places] = values
        return is_new

    def recent(self, name: str, window: int) -> list[float] | None:
        """The values of a name in the last `window` iterations. None if there are not as many rows
        of successive iterations, and one before."""
        place = self.places.get(name)
        if place is None or not 0 < window < self._successive:
            return None
        return self._cells[self.rows - window : self.rows, place].tolist()

    def read(self, window: int) -> tuple[list[float], list[float], int] | None:
        """Of each name the median of the last `window` iterations and the last value; and the last
        iteration. None where `recent` gives None."""
        if not 0 < window < self._successive:
            return None
        recent = self._cells[self.rows - window : self.rows]
        at, *latest = recent[-1].tolist()
        if len(self.names) < MANY_NAMES:
            return [median(column) for column in recent[:, 1:].T.tolist()], latest, int(at)
        ordered = np.sort(recent[:, 1:], axis=0)
        medians = ordered[window // 2]  # with NaN last
        if window % 2 == 0:
            with np.errstate(all="ignore"):  # values may be infinite
                medians = (medians + ordered[window // 2 - 1]) / 2
        medians[np.isnan(ordered[-1])] = math.nan
        return medians.tolist(), latest, int(at)

    def _dates(self, start: int) -> "array[int]":
        """The iterations of the rows from `start` on. Most columns are taken from the same one."""
        known, iterations = self._iterations
        if known != start or len(iterations) != self.rows - start:
            dates = self._cells[start : self.rows, 0].astype(np.int64)
            iterations = array("q", dates.tobytes())
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
