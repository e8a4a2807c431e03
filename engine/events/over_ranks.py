"""OverRanks: the metrics that all ranks have put become those of one run."""

import pickle
import socket
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from engine.events.history import Column
from engine.events.joint_plan import JointPlan, Layout
from engine.events.scalar_log import Name, find_iterations
from engine.parallel import comm
from engine.parallel.mailbox import Mailbox
from engine.parallel.slow_ranks import SlowRanks

OWN_NAMES = ("rank_data_time", "eta_seconds")  # of what each rank keeps for itself
MANY_NOTES = 16  # that wait before old values in them are let go


class News(NamedTuple):
    """What a rank tells rank 0 where its layout is another one than before."""

    host: str
    hints: dict[str, bool]  # of names that it has not told before, in the order of their places
    layout: Layout


Message = tuple[News | None, bytes]  # with the values
NEWS_SIZE = struct.Struct("<q")


def _refuse(values: np.ndarray) -> bool:
    return False


class OverRanks:
    """For each iteration the mean over the ranks that have put a value.

    Of times (`time`, `data_time`, `…_time`) it is the largest. That is so in the `window`
    iterations up to the latest value of a name, which is what readings look at. `rank_data_time`
    stays each rank's own, as does `eta_seconds`, which only rank 0 tells.

    Each rank sends rank 0 one message, however many metrics there are, and goes on.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._names: list[Name] = []  # what was put since the last call, as it came
        self._values = array("d")
        self._notes = 0
        self._is_whole = True  # whether nothing of it was let go
        self._places: dict[str, int] = {}  # of names, in layouts; -1: not sent
        self._sent: list[str] = []  # the names that have places
        self._told = 0  # of these, how many rank 0 knows
        self._last_names: list[Name] | None = None  # if the next ones may be of the same ages
        self._begins: list[int] = []  # where iterations begin in these
        self._last_ages: list[float] = []  # of these iterations
        self._chosen = np.zeros(0, np.intp)  # which of the last puts were sent, from their end
        self._mailbox = Mailbox()
        self._rank = comm.get_rank()
        self._all_ranks = AllRanks(window)  # used on rank 0

    @property
    def hints(self) -> Mapping[str, bool]:
        """The smoothing hints of all names, on rank 0."""
        return self._all_ranks.hints

    def widen(self, window: int) -> None:
        """Have as many iterations joint as that, if it is more than so far."""
        if window > self.window:
            self.window = self._all_ranks.window = window
            self._last_names = None  # what is sent is no longer as before

    def note(self, names: list[Name], values: "array[float]") -> None:
        """Take what this rank has put, as a `ScalarLog` gives it."""
        self._names += names
        self._values.extend(values)
        self._notes += 1
        if self._notes >= MANY_NOTES:
            self._let_old_go()

    def join(
        self,
        hints: Mapping[str, bool],
        iteration: int,
        overwrite: Callable[[np.ndarray, np.ndarray], bool],
    ) -> list[tuple[str, int, Column]]:
        """What the ranks have put since the last call: on rank 0, where it is written, names with
        what takes the place of the last so many values there.

        Where each value of rank 0's own has one that takes its place, `overwrite` is called first,
        with the places in what was noted, counted from its end, and the values; if it returns True,
        that was all. All ranks call it in the same iteration.
        """
        is_whole, self._is_whole = self._is_whole, True
        message = self._message(hints, iteration)
        others = self._mailbox.collect(_encode(message) if self._rank else b"")
        if self._rank:
            return []
        messages = [message, *map(_decode, others)]
        can_overwrite = is_whole and len(self._chosen) > 0
        in_order = partial(overwrite, self._chosen) if can_overwrite else _refuse
        return self._all_ranks.join(messages, iteration, in_order)

    def finish(self) -> None:
        """Wait until rank 0 has what was sent."""
        self._mailbox.finish()

    def _message(self, hints: Mapping[str, bool], iteration: int) -> Message:
        names, values = self._names, self._values
        self._names, self._values, self._notes = [], array("d"), 0
        news = None
        # Most periods put the same names in the same order.
        if names != self._last_names or self._ages(values, iteration) != self._last_ages:
            layout = self._find_layout(names, values, iteration)
            untold = {name: hints[name] for name in self._sent[self._told :]}
            news = News(socket.gethostname(), untold, layout)
            self._told = len(self._sent)
            # What was put for an iteration beside the name is of another age next time.
            has_dates = any(isinstance(name, tuple) for name in names)
            self._last_names = None if has_dates else names
            self._last_ages = self._ages(values, iteration)
        return news, np.frombuffer(values)[self._chosen].tobytes()

    def _ages(self, values: "array[float]", iteration: int) -> list[float]:
        return [iteration - values[at] for at in self._begins]

    def _find_layout(self, names: list[Name], values: "array[float]", iteration: int) -> Layout:
        metrics, iterations = find_iterations(names, values)
        for name in metrics:
            if name is not None and name not in self._places:
                is_own = name in OWN_NAMES
                self._places[name] = -1 if is_own else len(self._sent)
                self._sent += [] if is_own else [name]
        recent = _find_recent(metrics, iterations, self.window)
        chosen = [(at, place) for at, name in recent if (place := self._places[name]) >= 0]
        self._chosen = np.array([at for at, _ in chosen], np.intp) - len(metrics)
        self._begins = [at for at, name in enumerate(metrics) if name is None]
        ages = iteration - np.array(iterations, np.int64)
        return Layout(np.array([place for _, place in chosen], np.intp), ages[self._chosen])

    def _let_old_go(self) -> None:
        metrics, iterations = find_iterations(self._names, self._values)
        recent = _find_recent(metrics, iterations, self.window)
        values, self._names, self._values = self._values, [], array("d")
        begun: int | None = None
        for at, name in recent:
            if iterations[at] != begun:
                begun = iterations[at]
                self._names.append(None)
                self._values.append(begun)
            self._names.append(name)
            self._values.append(values[at])
        self._notes = 0
        self._is_whole = False


class AllRanks:
    """What rank 0 knows of all ranks."""

    def __init__(self, window: int) -> None:
        self.hints: dict[str, bool] = {}
        self.window = window
        self._names: list[str] = []
        self._news: dict[int, News] = {}  # by rank, with places as in `_names`
        self._places: dict[int, list[int]] = {}  # the same place by rank and the rank's own
        self._plan: JointPlan | None = None
        self._slow_ranks = SlowRanks(window)
        self._watched: list[tuple[str, np.ndarray]] = []  # times, and where each rank's values are

    def join(
        self,
        messages: Sequence[Message],
        iteration: int,
        overwrite: Callable[[np.ndarray], bool] = _refuse,
    ) -> list[tuple[str, int, Column]]:
        """Names, with what takes the place of the last so many of rank 0's own values.

        Nothing if `overwrite` has taken values for all of these, in the order they were put.
        """
        for rank, (news, _) in enumerate(messages):
            if news is not None:
                self._note(rank, news)
                self._plan = None
        plan = self._plan = self._plan or self._make_plan()
        values = np.frombuffer(b"".join([values for _, values in messages]))
        for name, places in self._watched:
            self._slow_ranks.note(name, values[places])
        if plan.keeps_order and overwrite(plan.join_in_order(values)):
            return []
        names = self._names
        joint = plan.join(values, iteration)
        return [(names[place], replaced, column) for place, replaced, column in joint]

    def _make_plan(self) -> JointPlan:
        by_rank = [self._news[rank] for rank in sorted(self._news)]
        is_time = np.array([_is_time(name) for name in self._names], bool)
        plan = JointPlan([news.layout for news in by_rank], is_time, self.window)
        self._slow_ranks.hosts = [news.host for news in by_rank]
        # A step waits for the other ranks: its `time` is long on those that are not slow.
        names = {self._names[place]: places for place, places in plan.times.items()}
        self._watched = [one for one in names.items() if _last_part(one[0]) != "time"]
        return plan

    def _note(self, rank: int, news: News) -> None:
        for name, hint in news.hints.items():
            if name not in self.hints:
                self.hints[name] = hint
                self._names.append(name)
        places = {name: place for place, name in enumerate(self._names)}
        own = self._places.setdefault(rank, [])
        own += [places[name] for name in news.hints]
        layout = Layout(np.array(own, np.intp)[news.layout.places], news.layout.ages)
        self._news[rank] = news._replace(layout=layout)


def _encode(message: Message) -> bytes:
    news, values = message
    told = b"" if news is None else pickle.dumps(news)
    return NEWS_SIZE.pack(len(told)) + told + values


def _decode(data: bytes) -> Message:
    (size,) = NEWS_SIZE.unpack_from(data)
    end = NEWS_SIZE.size + size
    return pickle.loads(data[NEWS_SIZE.size : end]) if size else None, data[end:]


def _find_recent(
    metrics: Sequence[str | None], iterations: Sequence[int], window: int
) -> list[tuple[int, str]]:
    """Where the puts are that readings look at: of a name those since the first of the `window`
    iterations up to its latest."""
    puts = [(at, name) for at, name in enumerate(metrics) if name is not None]
    latest: dict[str, int] = {}
    for at, name in puts:
        latest[name] = max(iterations[at], latest.get(name, iterations[at]))
    begun: set[str] = set()
    recent = []
    for at, name in puts:
        if name in begun or iterations[at] > latest[name] - window:
            begun.add(name)
            recent.append((at, name))
    return recent


def _is_time(name: str) -> bool:
    return f"_{_last_part(name)}".endswith("_time")


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
