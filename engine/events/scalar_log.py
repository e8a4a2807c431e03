"""ScalarLog: the scalars of the last steps as they came, until someone reads them."""

import struct
from array import array
from collections.abc import Callable

import numpy as np
import torch

from engine.events.history import Column
from engine.events.scalar import as_scalar, fetch

MAX_ENTRIES = 3 * 10_000  # of scalars that wait for a reader; then `when_full` empties the log


class SmoothingHintError(ValueError, AssertionError):
    """A name was put with another smoothing hint. (detectron2 has an AssertionError there.)"""


class ScalarLog:
    """Scalars in the order they were put, with what a put has to know.

    `entries` is flat (name, value, iteration, name, …): a step leaves no other objects behind than
    its numbers, and reading it is a matter of slices.
    """

    __slots__ = (
        "entries",
        "foreign",
        "has_tensors",
        "hints",
        "hints_as_put",
        "iteration",
        "prefix",
        "when_full",
    )

    def __init__(self, iteration: int, when_full: Callable[[], None] = lambda: None) -> None:
        self.when_full = when_full
        self.entries: list = []
        self.has_tensors = False
        self.hints: dict[str, bool] = {}  # by name, the smoothing hint
        self.hints_as_put = self.hints  # by name as it is put: none where a name scope is open
        self.iteration = iteration  # the current one
        self.prefix = ""  # of the name scopes that are open
        self.foreign: set[str] = set()  # names whose hint is that of a checkpoint or another rank

    def put(
        self,
        name: str,
        value: float | torch.Tensor | np.number,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
    ) -> float | torch.Tensor:
        """What `EventStorage.put_scalar` does."""
        if type(value) is not float:  # first, so that what is refused leaves no trace
            value = as_scalar(self.prefix + name, value)
            if type(value) is not float:
                self.has_tensors = True
        if self.hints_as_put.get(name, ...) is not smoothing_hint:
            name = self.full_name(name, smoothing_hint)
        entries = self.entries
        if cur_iter is None:
            entries += name, value, self.iteration
        else:
            entries += name, value, _checked_iteration(name, cur_iter)
        if len(entries) > MAX_ENTRIES:
            self.when_full()
        return value

    def open_scope(self, prefix: str) -> None:
        """Put `prefix` before the names from now on; "" ends that."""
        self.prefix = prefix
        self.hints_as_put = {} if prefix else self.hints

    def full_name(self, name: str, smoothing_hint: bool) -> str:
        """The name with its prefix, where the hint fits it."""
        name = self.prefix + name
        if self.hints.get(name, ...) is not smoothing_hint:
            self.check_hint(name, smoothing_hint)
        return name

    def take_hint(self, name: str, smoothing_hint: bool) -> None:
        """Take the hint of a name that was put elsewhere: a first put here may have another."""
        if name not in self.hints:
            self.hints[name] = smoothing_hint
            self.foreign.add(name)

    def check_hint(self, name: str, smoothing_hint: bool) -> None:
        """Refuse a hint that is not the one the name was first put with."""
        known = self.hints.setdefault(name, bool(smoothing_hint))
        if known is not bool(smoothing_hint):
            if name in self.foreign:  # the program may have been changed since
                self.foreign.remove(name)
                self.hints[name] = bool(smoothing_hint)
                return
            raise SmoothingHintError(
                f"metric {name!r} was put with smoothing_hint={known} before and with "
                f"{smoothing_hint} now; use one of them everywhere, or another name"
            )

    def take(self) -> tuple[list[str], Column]:
        """Empty the log: names and scalars as they came. Tensors become numbers."""
        entries, end = self.entries, len(self.entries)
        names, values, iterations = entries[:end:3], entries[1:end:3], entries[2:end:3]
        del entries[:end]  # what another thread puts meanwhile stays
        if self.has_tensors:
            self.has_tensors = False
            places = [at for at, value in enumerate(values) if isinstance(value, torch.Tensor)]
            numbers = fetch([values[at] for at in places])
            for at, number in zip(places, numbers, strict=True):
                values[at] = number
        return names, _column(values, iterations)


def _checked_iteration(name: str, iteration: float) -> int:
    if not -(2**63) <= iteration < 2**63:
        raise ValueError(f"metric {name!r}: {iteration} is no iteration")
    return int(iteration)


def _column(values: list[float], iterations: list[int]) -> Column:
    # `struct` is several times as quick as `array` in reading a list.
    length = len(values)
    return Column(
        array("d", struct.pack(f"{length}d", *values)),
        array("q", struct.pack(f"{length}q", *iterations)),
    )
