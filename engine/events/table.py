"""Table: the scalars of steps that all put the same names in the same order."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from engine.events.history import Column, median
from engine.events.scalar_log import Name

MAX_ROWS = 2_000
KEPT_ROWS = 100  # of a table that has more than these
MANY_NAMES = 16  # fewer are read quicker one by one


class Table:
    """A row a step, a column a name: what a hundred names have in common is done once for all.

    The first column is the iteration. The others are taken for the histories of their names when
    someone asks for these.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self.places = {name: place for place, name in enumerate(names, start=1)}
        self.width = len(names) + 1
        self.rows = 0
        self._head: list[Name] = [None, *names]
        self._cells = array("d")
        self._taken = [0] * self.width  # rows, of each column
        self._iterations = 0, array("q")  # what `take` gave last, and from which row

    def find_start(self, names: list[Name]) -> int:
        """From where to their end these names are rows of the table; their number if they are not.

        What a write or an evaluation puts comes once, before the steps that follow it.
        """
        width, end = self.width, len(names)
        if self.names and names[-width:] == self._head:
            for start in range(end % width, min(end, 4 * width), width):
                if names[start:] == self._head * ((end - start) // width):
                    return start
        return end

    def add(self, cells: "array[float]") -> None:
        """Add the values of whole rows, in the order of the names, each after its iteration."""
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

    def read(self, window: int) -> tuple[list[float], list[float], int] | None:
        """Of each name the median of the last `window` iterations and the last value; and the last
        iteration. None if there are not as many rows of successive iterations, and one before."""
        if not 0 < window < self.rows:
            return None
        if len(self.names) < MANY_NAMES:
            return self._read_one_by_one(window)
        # Of a copy, as an array that is looked at from anywhere cannot grow.
        cells = np.frombuffer(self._cells[-(window + 1) * self.width :]).reshape(-1, self.width)
        iterations = cells[:, 0]
        if (iterations[1:] - iterations[:-1] != 1).any():
            return None
        ordered = np.sort(cells[1:, 1:], axis=0)  # with NaN last
        medians = ordered[window // 2]
        if window % 2 == 0:
            with np.errstate(all="ignore"):  # values may be infinite
                medians = (medians + ordered[window // 2 - 1]) / 2
        medians = np.where(np.isnan(ordered[-1]), math.nan, medians)
        return medians.tolist(), cells[-1, 1:].tolist(), int(iterations[-1])

    def _read_one_by_one(self, window: int) -> tuple[list[float], list[float], int] | None:
        width, start = self.width, (self.rows - window) * self.width
        dates, latest = self._cells[start - width :: width].tolist(), self._cells[-width:].tolist()
        last = int(latest[0])
        if dates != list(range(last - window, last + 1)):
            return None
        columns = [self._cells[start + place :: width].tolist() for place in range(1, width)]
        return [median(column) for column in columns], latest[1:], last

    def _dates(self, start: int) -> "array[int]":
        """The iterations of the rows from `start` on. Most columns are taken from the same one."""
        known, iterations = self._iterations
        if known != start or len(iterations) != self.rows - start:
            iterations = array("q", map(int, self._cells[start * self.width :: self.width]))
            self._iterations = start, iterations
        return iterations


def find_cycle(names: list[Name]) -> list[str]:
    """The names that come in each iteration up to the end of the list, twice or more; [] if none
    do."""
    last = names[-1]
    if names.count(last) < 2:
        return []
    width = names[::-1].index(last, 1)
    head, *others = cycle = names[-width:]
    metrics = [name for name in others if isinstance(name, str)]
    is_row = head is None and len(set(metrics)) == width - 1
    return metrics if is_row and names[-2 * width : -width] == cycle else []
