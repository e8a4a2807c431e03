"""OverRanks: the metrics that all ranks have put become those of one run."""

import socket
from array import array
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from engine.events.history import Column, HistoryBuffer
from engine.events.metric_vector import MetricVector, Reduced
from engine.parallel import comm
from engine.parallel.slow_ranks import SlowRanks

NOTHING = Column(array("d"), array("q"))


class JointValues(NamedTuple):
    """What takes the place of the last `replaced` values of a scalar."""

    replaced: int
    column: Column


class OverRanks:
    """For each of the last `window` iterations the mean over the ranks that have put a value.

    Of times (`time`, `data_time`, `…_time`) it is the largest. A name without a value in these
    iterations has the mean of its last ones. Names that begin with `rank_` stay each rank's own,
    as does `eta_seconds`, which only rank 0 tells.

    One vector is summed over ranks, however many metrics there are; where some rank has a new name,
    names are exchanged too, and a second vector.
    """

    def __init__(self, histories: Mapping[str, HistoryBuffer], window: int) -> None:
        self.hints: dict[str, bool] = {}  # of all names that the ranks know, in one order
        self._window = window
        self._vector = self._make_vector([], [])
        self._joined = {name: history.count for name, history in histories.items()}
        self._times: list[str] = []
        self._hosts: list[str] = []
        self._slow_ranks = SlowRanks(window)

    def join(
        self, histories: Mapping[str, HistoryBuffer], hints: Mapping[str, bool], iteration: int
    ) -> dict[str, JointValues]:
        """What the ranks have put since the last call: on rank 0, where it is written.

        All ranks call it in the same iteration.
        """
        new = self._take_new(histories)
        window = range(iteration - self._window + 1, iteration + 1)
        own = self._vector.pack(new, window, header=not new.keys() <= self.hints.keys())
        total = comm.sum_over_ranks(own)
        if total[0]:
            self._exchange_names({name: hints[name] for name in new})
            own = self._vector.pack(new, window, header=False)
            total = comm.sum_over_ranks(own)
        if comm.get_rank() != 0:
            return {}
        reduced = self._vector.unpack(total, own)
        self._look_for_slow_ranks(reduced)
        return self._joint_values(reduced, new, window)

    def _take_new(self, histories: Mapping[str, HistoryBuffer]) -> dict[str, Column]:
        new = {}
        for name, history in histories.items():
            count, joined = history.count, self._joined.get(name, 0)
            if count != joined and not _is_own(name):
                new[name] = history.since(joined)
                self._joined[name] = count
        return new

    def _exchange_names(self, hints: dict[str, bool]) -> None:
        everywhere = comm.all_gather((socket.gethostname(), hints))
        self._hosts = [host for host, _ in everywhere]
        for _, names in everywhere:
            self.hints = {**names, **self.hints}
        self._times = [name for name in self.hints if _is_time(name)]
        self._vector = self._make_vector(
            [name for name in self.hints if not _is_time(name)], self._times
        )

    def _make_vector(self, means: list[str], times: list[str]) -> MetricVector:
        return MetricVector(means, times, self._window + 1, comm.get_rank(), comm.get_world_size())

    def _look_for_slow_ranks(self, reduced: Reduced) -> None:
        first = len(reduced.counts) - len(self._times)
        for name, seconds, counts in zip(
            self._times, reduced.seconds, reduced.counts[first:], strict=True
        ):
            if _last_part(name) == "time":
                continue  # a step waits for the other ranks: it is long on those that are not slow
            everywhere = counts[1:] == len(self._hosts)
            self._slow_ranks.note(name, seconds[:, 1:][:, everywhere], self._hosts)

    def _joint_values(
        self, reduced: Reduced, new: dict[str, Column], window: range
    ) -> dict[str, JointValues]:
        joint, iterations, slots = {}, array("q", window), len(window) + 1
        numbers = array("d", reduced.values.tobytes())  # slices of it are quicker than NumPy's
        first_slots = _first_slots(reduced.counts)
        for place, (name, first) in enumerate(zip(self._vector.names, first_slots, strict=True)):
            column = new.get(name, NOTHING)
            if first and column.iterations == iterations[first - 1 :]:
                values = numbers[place * slots + first : (place + 1) * slots]
                joint[name] = JointValues(len(values), Column(values, column.iterations))
            elif (counts := reduced.counts[place]).any():
                last = round(reduced.last[place] / max(counts[0], 1))
                joint[name] = _replace_in_window(
                    column, reduced.values[place], counts, window, last
                )
                replaced, (values, _) = joint[name]
                self._joined[name] = self._joined.get(name, 0) - replaced + len(values)
        return joint


def _first_slots(counts: np.ndarray) -> list[int]:
    """Of each row the slot from which on, and before which not, there are values; 0 for others."""
    filled = counts > 0
    first = filled.argmax(1)
    is_rest = filled.sum(1) == counts.shape[1] - first
    return np.where(is_rest, first, 0).tolist()


def _replace_in_window(
    column: Column, row: np.ndarray, counts: np.ndarray, window: range, last: int
) -> JointValues:
    """The values of all ranks, after those of this one that are older than the window."""
    kept = [one for one in zip(*column, strict=True) if one[1] not in window]
    joint = [(row[slot], window[slot - 1]) for slot in range(1, len(row)) if counts[slot]]
    if not joint:
        kept, joint = kept[:-1], [(row[0], last)]
    values, iterations = zip(*kept, *joint, strict=True)
    return JointValues(len(column.values), Column(array("d", values), array("q", iterations)))


@cache
def _is_own(name: str) -> bool:
    return _last_part(name).startswith("rank_") or name == "eta_seconds"


def _is_time(name: str) -> bool:
    return f"_{_last_part(name)}".endswith("_time")


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
