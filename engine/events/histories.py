"""Histories: those of all scalars of a run, and what is shown of them."""

import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from engine.events.history import Column, HistoryBuffer
from engine.events.readings import NOTHING_REGULAR, Readings, Regular, Shown
from engine.events.scalar_log import Metric, Name, find_iterations
from engine.events.table import MAX_ROWS, Table, find_cycle

KEPT_VALUES = MAX_ROWS  # of each scalar; the whole curve is in the files that writers make


class Histories(Mapping[str, HistoryBuffer]):
    """By name. The scalars of steps that put the same names wait in a table until someone asks for
    a history: to sort in each name at each write takes longer than all else. What writers show is
    read off the table.

    `catch_up` is called before each read of a history, to `add` what has not been so far. Threads
    may read at any time: whoever changes anything holds the `lock`.
    """

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self._catch_up = catch_up
        self._by_name: dict[str, HistoryBuffer] = {}
        self._table = Table()
        self._added_last = 0  # how many values in the table were
        self._readings = Readings([], NOTHING_REGULAR, {}, 0)  # what `readings` gave last
        self._window = 0  # of these
        self._regular = NOTHING_REGULAR  # what is shown of the names in the table
        self._shown_rows = 0  # of the table, how many are in it
        self._others: dict[str, Shown] = {}  # what is shown of the other names
        self._unshown: dict[str, None] = {}  # those of them that may have changed, in their order

    def __getitem__(self, name: str) -> HistoryBuffer:
        history = self._by_name[name]
        with self.lock:
            self._sort_in(name)
        return history

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, names: list[Name], values: "array[float]") -> None:
        """Take scalars with their names, as a `ScalarLog` gives them. Called with the lock."""
        rows = self._table.count_rows(names)
        if not rows and (cycle := find_cycle(names)):
            self._begin_table(cycle)
            rows = self._table.count_rows(names)
        start = len(names) - rows * len(self._table.head)
        place = len(values) - rows * self._table.width
        if start:
            self._add_odd(names[:start], values[:place])
        self._added_last = len(values) - place
        if rows:
            if not self._table.rows:
                for name in self._table.names:
                    self._find_or_make(name)
            if self._table.rows > MAX_ROWS:
                self.sort_in_all()
                self._shown_rows -= self._table.cut()  # below 0 if some were never shown
            self._table.add(values[place:])

    def readings(self, window: int, hints: Mapping[str, bool]) -> Readings:
        """Of each scalar the median over `window` iterations if its hint says so, else the latest
        value; computed once for all who ask. To be called with the lock."""
        is_other_window = window != self._window
        if not (is_other_window or self._unshown or self._table.rows != self._shown_rows):
            return self._readings
        version = self._readings.version + 1
        self._window = window
        if is_other_window or self._table.rows != self._shown_rows:
            self._read_table(hints, version)
        if is_other_window:
            self._unshown.update(dict.fromkeys(self._others))
        for name in self._unshown:
            self._sort_in(name)
            reading = self._by_name[name].reading(window if hints[name] else 0)
            shown = Shown(*reading, version)
            if (before := self._others.get(name)) and before.total == shown.total:
                shown = shown._replace(version=before.version)
            self._others[name] = shown
        self._unshown.clear()
        names = self._readings.names
        if len(names) < len(self._by_name):
            names = list(self._by_name)
        self._readings = Readings(names, self._regular, self._others.copy(), version)
        return self._readings

    def recent(self, name: str, window: int) -> list[float] | None:
        """The values of a name in the last `window` iterations; None if they are not all in the
        table."""
        with self.lock:
            return self._table.recent(name, window)

    def overwrite_last(self, places: np.ndarray, values: np.ndarray) -> bool:
        """Put others in the place of some of the values that were added last, unless one has been
        read: returns whether it was done. `places` are counted from the end, the first one first.
        """
        with self.lock:
            unshown = (self._table.rows - self._shown_rows) * self._table.width
            is_new = -places[0] <= min(self._added_last, unshown)
            return is_new and self._table.overwrite(places, values)

    def replace_last(self, name: str, count: int, column: Column) -> None:
        """Put others in the place of the last so many values of a name, which may be a new one."""
        with self.lock:
            self._leave_table(name)
            self._find_or_make(name).replace_last(count, column)
            self._unshown[name] = None

    def load(self, name: str, state: dict) -> None:
        """Have the history of a name be the saved one."""
        with self.lock:
            self._leave_table(name)
            self._find_or_make(name).load_state_dict(state)
            self._unshown[name] = None

    def sort_in_all(self) -> None:
        """Have each history hold all that was added of it."""
        with self.lock:
            for name in self._table.names:
                self._sort_in(name)

    def _add_odd(self, names: list[Name], values: "array[float]") -> None:
        columns = _by_name(names, values)
        for name, column in columns.items():
            self._leave_table(name)
            self._find_or_make(name).extend(*column)
        self._unshown.update(dict.fromkeys(columns))

    def _read_table(self, hints: Mapping[str, bool], version: int) -> None:
        """Have what is shown of the table's names be read off it, all together if that can be."""
        table = self._table
        new, self._shown_rows = table.rows - self._shown_rows, table.rows
        read = table.read(self._window)
        regular = self._regular
        if read is not None and new and not regular.names:
            regular = self._first_regular()
        if read is not None and regular.names:
            medians, latest, at = read
            values = [
                middle if hints[name] else last
                for name, middle, last in zip(table.names, medians, latest, strict=True)
            ]
            version = version if new else regular.version
            self._regular = regular._replace(
                values=values, iteration=at, rows=regular.rows + new, version=version
            )
        elif new or regular.names:
            self._end_regular()

    def _first_regular(self) -> Regular:
        """The table's names as they were shown so far, one by one, if nothing else came since."""
        table, others = self._table, self._others
        names = table.places.keys()
        if not (others.keys() >= names and names.isdisjoint(self._unshown)):
            return NOTHING_REGULAR
        totals = [others.pop(name).total for name in table.names]
        return NOTHING_REGULAR._replace(names=table.names, places=table.places, totals=totals)

    def _end_regular(self) -> None:
        """Have the names of the table be shown one by one."""
        self._others.update(self._regular.one_by_one())
        self._regular = NOTHING_REGULAR
        self._unshown.update(dict.fromkeys(self._table.names))

    def _begin_table(self, metrics: Sequence[Metric]) -> None:
        if self._table.rows:
            self.sort_in_all()
            self._end_regular()
        self._table = Table(metrics)
        self._shown_rows = self._added_last = 0

    def _leave_table(self, name: str) -> None:
        """Have nothing of a name in the table."""
        if self._table.rows and name in self._table.places:
            self._begin_table(self._table.metrics)

    def _find_or_make(self, name: str) -> HistoryBuffer:
        if name not in self._by_name:
            name = "" + name  # a string and no more: a checkpoint holds no other
            reference = weakref.ref(self)  # a strong one would be a cycle

            def catch_up() -> None:
                if (owner := reference()) is not None:
                    owner._catch_up()
                    with owner.lock:
                        owner._sort_in(name)

            def changed() -> None:
                if (owner := reference()) is not None:
                    with owner.lock:
                        owner._leave_table(name)
                        owner._unshown[name] = None

            self._by_name[name] = HistoryBuffer(KEPT_VALUES, catch_up=catch_up, changed=changed)
        return self._by_name[name]

    def _sort_in(self, name: str) -> None:
        if (column := self._table.take(name)) is not None:
            self._by_name[name].extend(*column)


def _by_name(names: list[Name], values: "array[float]") -> dict[str, Column]:
    """The values of each metric, with their iterations."""
    columns: dict[str, Column] = {}
    for name, iteration, value in zip(*find_iterations(names, values), values, strict=True):
        if name is not None:
            if name not in columns:
                columns[name] = Column(array("d"), array("q"))
            columns[name].values.append(value)
            columns[name].iterations.append(iteration)
    return columns
