"""Readings: what is shown of all scalars at one moment, and what of it is news to whom."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Reading = tuple[float, int, int]
"""The value to show, its iteration, and how many there have been."""

Cursor = int | dict[str, int]
"""How far somebody has read: up to a version of the readings, or of each name so many values."""


class Shown(NamedTuple):
    """What is shown of one name. Its version is that of the readings when a value came last."""

    value: float
    iteration: int
    total: int  # values there have been
    version: int


class Regular(NamedTuple):
    """The same of names that all get a value in each iteration."""

    names: list[str]
    places: dict[str, int]  # of names, counted from 1
    values: list[float]
    iteration: int
    totals: list[int]  # before `rows` more values of each name came
    rows: int
    version: int

    def one_by_one(self) -> dict[str, Shown]:
        """By name, what is shown of it."""
        return {
            name: Shown(value, self.iteration, total + self.rows, self.version)
            for name, value, total in zip(self.names, self.values, self.totals, strict=True)
        }


NOTHING_REGULAR = Regular([], {}, [], 0, [], 0, 0)


class Readings(Mapping[str, Reading]):
    """By name, what is shown of it. Nothing in here changes: a new one takes its place.

    What regular names have in common is looked at once for all: there may be hundreds of them.
    """

    def __init__(
        self, names: list[str], regular: Regular, others: dict[str, Shown], version: int
    ) -> None:
        self.names = names  # the same list as before, unless there are more
        self.version = version  # higher than before, if a value has come
        self._regular = regular
        self._others = others

    def __getitem__(self, name: str) -> Reading:
        regular = self._regular
        if (place := regular.places.get(name)) is None:
            return self._others[name][:3]
        total = regular.totals[place - 1] + regular.rows
        return regular.values[place - 1], regular.iteration, total

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def since(self, cursor: Cursor) -> dict[int, dict[str, float]]:
        """What is new to somebody who has read so far: by iteration, by name."""
        records: dict[int, dict[str, float]] = {}
        regular, others = self._regular, self._others
        if isinstance(cursor, dict):
            others = {
                name: shown
                for name, shown in self._one_by_one().items()
                if cursor.get(name) != shown.total
            }
            cursor = -1
        elif regular.version > cursor:
            records[regular.iteration] = dict(zip(regular.names, regular.values, strict=True))
        for name, shown in others.items():
            if shown.version > cursor:
                records.setdefault(shown.iteration, {})[name] = shown.value
        return dict(sorted(records.items()))

    def counts(self, cursor: Cursor) -> dict[str, int]:
        """The same cursor as a dict, which has a meaning in another run too: of names that have no
        news for it."""
        shown = self._one_by_one().items()
        if isinstance(cursor, dict):
            return {name: one.total for name, one in shown if cursor.get(name) == one.total}
        return {name: one.total for name, one in shown if one.version <= cursor}

    def _one_by_one(self) -> dict[str, Shown]:
        shown = {**self._regular.one_by_one(), **self._others}
        return {name: shown[name] for name in self.names}
