"""JointPlan: how what many ranks have put becomes the values of one run."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.events.history import Column

SCALE = 2.0**-16  # of sums, which large numbers would make infinite: it rounds none above 1e-300


class Layout(NamedTuple):
    """What a rank has put, in the order it came, but for the values themselves."""

    places: np.ndarray  # of the names, in a list of them
    ages: np.ndarray  # in iterations: 0 is of the current one

    def equals(self, other: "Layout") -> bool:
        return np.array_equal(self.places, other.places) and np.array_equal(self.ages, other.ages)


JointValues = tuple[int, int, Column]
"""The place of a name, and what takes the place of the last so many values that rank 0 has of it.
"""

Cells = tuple[int, int, int, int, int]
"""A name's place, how many values of rank 0's are replaced, from where to where in the joint values
those of the name are, and where their ages are in a list."""


class JointPlan:
    """The mean over ranks of each name in each iteration; of times the largest.

    Of a name that is put several times in an iteration the first values are joined, the second ones
    and so on. Values that are `window` iterations older than the latest of their name are left out:
    a rank that put it last long ago has sent them.

    A plan is made for the layouts of all ranks and good for as long as these stay the same, as they
    do in most periods: to join values takes a few calls then.
    """

    def __init__(self, layouts: Sequence[Layout], is_time: np.ndarray, window: int) -> None:
        self.times = _find_times(layouts, is_time)
        """By the place of a time that all ranks have equally often: where each rank's values are.
        """
        # Ranks with one layout, as most have, are rows of a table; others are one row together.
        self._rows = len(layouts) if all(one.equals(layouts[0]) for one in layouts) else 1
        own, layouts = layouts[0], layouts[: 1 if self._rows > 1 else None]
        places = np.concatenate([layout.places for layout in layouts])
        ages = np.concatenate([layout.ages for layout in layouts])
        turns = np.concatenate([_find_turns(layout) for layout in layouts])
        # A cell is a name in an iteration, and the turn of a put in it; in it, values are in the
        # order of ranks.
        order = np.lexsort((turns, -ages, places))
        keys = np.stack((places, ages, turns))[:, order]
        is_first = _are_first(keys)
        starts = np.flatnonzero(is_first)
        self._groups = _Groups(order, starts, np.diff(starts, append=len(order)))
        places, ages, _ = keys[:, is_first]
        youngest = np.full(len(is_time), np.iinfo(np.int64).max)
        np.minimum.at(youngest, places, ages)
        kept = np.flatnonzero(ages - youngest[places] < window)
        self._cells, self._ages = _find_cells(places[kept], ages[kept], own)
        self._has_groups = len(places) < len(order)  # else all is in the order it was put in
        self.keeps_order = self._rows > 1 and not self._has_groups and len(kept) == len(order)
        """Whether each value that rank 0 has put has a joint one, and there are no others."""
        self._kept = kept if self._has_groups else order[kept]
        self._is_time = is_time[places if self._has_groups else places[np.argsort(order)]]

    def join(self, values: np.ndarray, iteration: int) -> list[JointValues]:
        """The joint values of each name, from those of all ranks in the order of the layouts."""
        if not len(values):
            return []
        joint = self.join_in_order(values)[self._kept]
        numbers = array("d", joint.tobytes())  # slices of it are quicker than NumPy's
        iterations = [array("q", (iteration - ages).tobytes()) for ages in self._ages]
        return [
            (place, replaced, Column(numbers[start:end], iterations[ages]))
            for place, replaced, start, end, ages in self._cells
        ]

    def join_in_order(self, values: np.ndarray) -> np.ndarray:
        """The joint values of cells; if the plan `keeps_order`, in the order of rank 0's layout."""
        with np.errstate(all="ignore"):  # values may be NaN and infinite
            if self._has_groups:
                order, starts, counts = self._groups
                values = values[order]
                means = np.add.reduceat(values * SCALE, starts) / (counts * SCALE)
                least = np.minimum.reduceat(values, starts)
                largest = np.maximum.reduceat(values, starts)
            else:
                table = values.reshape(self._rows, -1)
                means = np.add.reduce(table * SCALE) / (self._rows * SCALE)
                least, largest = np.minimum.reduce(table), np.maximum.reduce(table)
        # What is the same on all ranks, as the result of an evaluation, is not rounded.
        return np.where(self._is_time | (least == largest), largest, means)


class _Groups(NamedTuple):
    """The values of each cell beside each other: their order, where cells begin, and how many
    values they have."""

    order: np.ndarray
    starts: np.ndarray
    counts: np.ndarray


def _are_first(keys: np.ndarray) -> np.ndarray:
    """Which columns differ from the one before."""
    differs = (keys[:, 1:] != keys[:, :-1]).any(0)
    return np.append(np.ones(min(1, keys.shape[1]), bool), differs)


def _find_turns(layout: Layout) -> np.ndarray:
    """For each put, how many of its name there are before it in the same iteration."""
    order = np.lexsort((layout.ages, layout.places))
    is_first = _are_first(np.stack(layout)[:, order])
    starts = np.flatnonzero(is_first)
    turns = np.empty(len(order), np.intp)
    turns[order] = np.arange(len(order)) - starts[np.cumsum(is_first) - 1]
    return turns


def _find_cells(
    places: np.ndarray, ages: np.ndarray, own: Layout
) -> tuple[list[Cells], list[np.ndarray]]:
    """For each name where its cells are; and the ages of cells, which many names share."""
    replaced = np.bincount(own.places, minlength=places.max(initial=0) + 1).tolist()
    bounds = [*np.flatnonzero(np.diff(places, prepend=-1)).tolist(), len(places)]
    distinct: dict[bytes, int] = {}
    cells = []
    for start, end in pairwise(bounds):
        place = int(places[start])
        at = distinct.setdefault(ages[start:end].tobytes(), len(distinct))
        cells.append((place, replaced[place], start, end, at))
    return cells, [np.frombuffer(one, np.int64) for one in distinct]


def _find_times(layouts: Sequence[Layout], is_time: np.ndarray) -> dict[int, np.ndarray]:
    places = np.concatenate([layout.places for layout in layouts])
    ranks = np.repeat(np.arange(len(layouts)), [len(layout.places) for layout in layouts])
    found = {}
    for place in np.flatnonzero(is_time).tolist():
        index = np.flatnonzero(places == place)
        counts = np.bincount(ranks[index], minlength=len(layouts))
        if counts[0] and (counts == counts[0]).all():
            found[place] = index.reshape(len(layouts), -1)
    return found
