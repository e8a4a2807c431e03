"""HookList: the hooks of a trainer in their order, called point by point and timed."""

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tabulate import tabulate

from engine.hooks.base import POINTS, HookBase, Priority
from engine.utils.unique_names import unique_names

logger = logging.getLogger(__name__)

LEAST_SECONDS = 0.001  # that a table of times shows
POINTS_WIDTH = 60  # characters, so that the tables fit a terminal


@dataclass(slots=True)
class _Call:
    """One method of one hook."""

    hook: HookBase
    method: Callable[..., None]
    seconds: float = 0.0


class EvaluationLeft(BaseException):
    """Leaves an evaluation, and the point of the loop it belongs to, as the run must end now.

    Not an Exception: code that handles the errors of an evaluation must not hold it up.
    """

    point = hook = ""  # where it was left: the hook at this point was the one that evaluated


class HookList:
    """Hooks by priority, then in the order of adding. Only methods they override are called."""

    def __init__(self) -> None:
        self.hooks: list[HookBase] = []
        self._collected: list[HookBase] = []  # the hooks that `calls` are of
        self.calls: dict[str, tuple[_Call, ...]] = dict.fromkeys(POINTS, ())
        self._started: set[int] = set()  # ids of hooks
        self._saved: dict[str, dict] = {}  # states, where some are of hooks that may be added yet
        self._given: dict[str, HookBase] = {}  # who has them
        self.has_failed = False  # at a point where the others are called all the same

    def add(self, hooks: Sequence[HookBase], priority: int | str | None) -> None:
        """Put hooks into their places; `priority` overrides that of their classes."""
        for hook in hooks:
            if not isinstance(hook, HookBase):
                raise TypeError(f"a hook must be a HookBase, got {type(hook).__name__}: {hook!r}")
            _warn_of_misspelt_points(hook)
            hook.priority = Priority.parse(hook.priority if priority is None else priority)
        self.hooks.extend(hooks)
        self.hooks.sort(key=lambda hook: hook.priority)
        self._collect_calls()

    def mind_changes(self) -> None:
        """Call other hooks from now on if somebody has changed the list of hooks itself."""
        if self.hooks != self._collected:
            self._collect_calls()

    def run(self, point: str, *args: Any, first: str = "") -> None:
        """Call the hooks at a point, from the one named `first` on; an error ends it."""
        calls = self._calls_from(point, first) if first else self.calls[point]
        start = perf_counter()
        try:
            for call in calls:
                if args:
                    call.method(*args)
                else:  # in each step: a plain call is the quickest
                    call.method()
                now = perf_counter()
                call.seconds += now - start
                start = now
        except EvaluationLeft as left:
            left.point, left.hook = point, self.name_of(call.hook)
            raise

    def run_all(self, point: str, *args: Any) -> None:
        """Call all the hooks that were started at a point, then raise the first error."""
        _raise_first(self._try_all(point, *args))

    def start(self) -> None:
        """Run every `before_train`, whatever fails, then raise the first error."""
        self.has_failed = False
        for name in sorted(self._give_saved()):
            logger.warning("The state of the hook %s is not used: there is no such hook", name)
        self._saved, self._given = {}, {}
        self._collect_calls(keep_times=False)
        if self.hooks:
            logger.info("Hooks in their order:\n%s", self.order_table())
        self._started = {id(hook) for hook in self.hooks}
        failures = self._try_all("before_train")
        self._started -= {id(hook) for hook, _ in failures}
        _raise_first(failures)

    def start_late(self, hook: HookBase) -> None:
        """Run `before_train` of a hook that was added in the middle of a run."""
        hook.before_train()
        self._started.add(id(hook))

    def finish(self) -> None:
        """Run `after_train` of every hook that was started, then raise the first error."""
        failures = self._try_all("after_train")
        self._started.clear()
        if self.hooks:
            logger.info("Time of the hooks:\n%s", self.time_table())
        _raise_first([one for one in failures if not isinstance(one[1], EvaluationLeft)])

    def state_dict(self) -> dict[str, dict]:
        """The states by hook: `EvalHook`, `EvalHook#2`, …; hooks without state are left out."""
        states = {name: hook.state_dict() for name, hook in self._named().items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: dict[str, dict]) -> None:
        """Give the hooks their states; those that are added later get theirs at the start."""
        self._saved, self._given = states, {}
        if not self._give_saved():
            self._saved = {}  # it may be large

    def name_of(self, hook: HookBase) -> str:
        """The name that the hook's state has: `EvalHook`, `EvalHook#2`, …"""
        return next(name for name, one in self._named().items() if one is hook)

    def order_table(self) -> str:
        """The hooks in their order, with their priorities and the points they act at."""
        rows = [
            (_short(name), int(hook.priority), ", ".join(self._seconds_at_points(hook)) or "none")
            for name, hook in self._named().items()
        ]
        return _table(rows, ("hook", "priority", "points"))

    def time_table(self) -> str:
        """The seconds that each hook took, in all and at its points, the longest first.

        What is under a millisecond is left out; such hooks share the last row.
        """
        rows, others = [], []
        for name, hook in self._named().items():
            at_points = self._seconds_at_points(hook)
            seconds = sum(at_points.values())
            if seconds < LEAST_SECONDS:
                others.append(seconds)
                continue
            shown = [f"{p} {took:.3f}" for p, took in at_points.items() if took >= LEAST_SECONDS]
            rows.append((_short(name), seconds, ", ".join(shown)))
        rows.sort(key=lambda row: -row[1])
        if others:
            rows.append((f"others ({len(others)})", sum(others), ""))
        return _table(rows, ("hook", "seconds", "at"))

    def _collect_calls(self, keep_times: bool = True) -> None:
        self._collected = list(self.hooks)
        for hook in self.hooks:
            hook.priority = Priority.parse(hook.priority)
        for point, old in self.calls.items():
            times = {id(call.hook): call.seconds for call in old} if keep_times else {}
            self.calls[point] = tuple(
                _Call(hook, getattr(hook, point), times.get(id(hook), 0.0))
                for hook in self.hooks
                if _overrides(hook, point)
            )

    def _try_all(self, point: str, *args: Any) -> list[tuple[HookBase, BaseException]]:
        failures: list[tuple[HookBase, BaseException]] = []
        for call in self.calls[point]:
            if id(call.hook) not in self._started:
                continue
            start = perf_counter()
            try:
                call.method(*args)
            except BaseException as error:  # Ctrl-C in a long last evaluation too
                failures.append((call.hook, error))
                self.has_failed = True
            call.seconds += perf_counter() - start
        return failures

    def _calls_from(self, point: str, first: str) -> tuple[_Call, ...]:
        names = [self.name_of(call.hook) for call in self.calls[point]]
        if first in names:
            return self.calls[point][names.index(first) :]
        logger.warning("%s was left at the hook %s: there is no such hook now", point, first)
        return ()

    def _give_saved(self) -> set[str]:
        """Returns the names that no hook has."""
        for name, hook in self._named().items():
            # One that is added before another of its class takes over that one's name.
            if name in self._saved and self._given.get(name) is not hook:
                hook.load_state_dict(self._saved[name])
                self._given[name] = hook
        return self._saved.keys() - self._given.keys()

    def _named(self) -> dict[str, HookBase]:
        return dict(zip(unique_names(self.hooks), self.hooks, strict=True))

    def _seconds_at_points(self, hook: HookBase) -> dict[str, float]:
        """The points that a hook acts at, with the seconds it took there."""
        return {
            point: call.seconds
            for point, calls in self.calls.items()
            for call in calls
            if call.hook is hook
        }


def attach_error(first: BaseException, later: BaseException) -> None:
    """Note a later error on the first one, and log it: the first is what the user shall see."""
    text = f"After that, another error came: {type(later).__name__}: {later}"
    logger.error("%s", text, exc_info=later)
    if hasattr(first, "add_note"):  # Python 3.11
        for note in (text, *getattr(later, "__notes__", ())):
            first.add_note(note)


def _short(name: str) -> str:
    """Without the function that a class was defined in."""
    return name.rpartition(".")[2]


def _table(rows: Sequence[tuple[Any, ...]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers, floatfmt=".3f", maxcolwidths=[None, None, POINTS_WIDTH])


def _warn_of_misspelt_points(hook: HookBase) -> None:
    for name in set(dir(type(hook))) - set(dir(HookBase)):
        close = difflib.get_close_matches(name, POINTS, n=1, cutoff=0.9)
        if close and not _overrides(hook, close[0]):
            logger.warning(
                "%s has a method %s, which is never called: is %s meant?",
                type(hook).__name__,
                name,
                close[0],
            )


def _overrides(hook: HookBase, point: str) -> bool:
    return point in vars(hook) or getattr(type(hook), point) is not getattr(HookBase, point)


def _raise_first(failures: list[tuple[HookBase, BaseException]]) -> None:
    if failures:
        first = failures[0][1]
        for _, later in failures[1:]:
            attach_error(first, later)
        raise first
