"""ScalarLog: the scalars of the last steps as they came, until someone reads them."""

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from engine.events.scalar import as_scalar, fetch, is_deferred

MAX_ENTRIES = 2 * 20_000  # names and values that wait for a reader: after the step, the log is full
MAX_IN_STEP = MAX_ENTRIES + 10_000  # or in the midst of one: what is cut there is slower to read
MAX_KNOWN_TOGETHER = 300  # or code that puts new names in each step would fill the memory
PLAIN = {float, int, bool}  # with tensors or NumPy's numbers among them, a sum is no float

Metric = str | list[str]
"""The name of a metric, or those of several that were put together, with a value each."""

Name = Metric | tuple[str, int] | None
"""What a value stands for: a metric in the current iteration; a metric in the iteration beside its
name; or, with None, the number of an iteration that begins there."""


class SmoothingHintError(ValueError, AssertionError):
    """A name was put with another smoothing hint. (detectron2 has an AssertionError there.)"""


class Together(NamedTuple):
    """Names that were put together, with their hint, and what packs their values."""

    names: list[str]
    hint: bool
    packer: struct.Struct
    are_plain: bool  # whether the last values were all of types in PLAIN


class ScalarLog:
    """Scalars in the order they were put, with what a put has to know.

    `entries` is flat (name, value, name, …), with names as in `Name`: a step leaves no other
    objects behind than its numbers, and reading it is a matter of slices. Its first name is None.
    What is put together is one entry, of a list of names and the bytes of their values.
    """

    __slots__ = (
        "entries",
        "foreign",
        "has_tensors",
        "hints",
        "hints_as_put",
        "iteration",
        "known_together",
        "names_of_packer",
        "packer",
        "prefix",
        "together",
        "when_full",
    )

    def __init__(self, iteration: int, when_full: Callable[[], None] = lambda: None) -> None:
        self.when_full = when_full
        self.iteration = _checked_iteration("storage.iter", iteration)  # the current one
        self.entries: list = [None, self.iteration]
        self.has_tensors = False
        self.hints: dict[str, bool] = {}  # by name, the smoothing hint
        self.hints_as_put = self.hints  # by name as it is put: none where a name scope is open
        # What was put together, by how many names and the first of them.
        self.known_together: dict[tuple[int, str], Together] = {}
        self.together = 0  # scalars that wait in such entries
        self.packer = struct.Struct("")  # of what was taken last that was put together
        self.names_of_packer: list[Name] = []
        self.prefix = ""  # of the name scopes that are open
        self.foreign: set[str] = set()  # names whose hint is that of a checkpoint or another rank

    @property
    def has_news(self) -> bool:
        """Whether something was put since the last `take`."""
        return len(self.entries) > 2

    def go_to(self, iteration: int) -> None:
        """Have what is put from now on be of this iteration."""
        if iteration == self.iteration:
            return  # a step in which it is set twice would be no row of a table
        self.iteration = iteration = _checked_iteration("storage.iter", iteration)
        entries = self.entries
        entries += None, iteration
        if len(entries) + self.together > MAX_ENTRIES:
            self.when_full()

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
        if cur_iter is None or cur_iter == self.iteration:
            entries += name, value
        else:
            entries += (name, _checked_iteration(f"metric {name!r}", cur_iter)), value
        if len(entries) > MAX_IN_STEP:
            self.when_full()
        return value

    def put_together(
        self, scalars: Mapping[str, float | torch.Tensor | np.number], smoothing_hint: bool
    ) -> bool:
        """Put them as one entry, of the current iteration. False where that cannot be: a device has
        to be asked for a number, a name scope is open, or there are none."""
        if self.prefix or not scalars:
            return False
        names, values = list(scalars), list(scalars.values())
        key = len(names), names[0]
        known, packed = self.known_together.get(key), b""
        try:
            if (
                known is None
                or known.names != names  # the same strings, most often: no letter is looked at
                or known.hint is not smoothing_hint
                or not known.are_plain
                or type(sum(values, 0.0)) is not float
            ):
                known = None
            else:
                packed = known.packer.pack(*values)
        except Exception:  # one of them is no number: `as_scalar` tells which
            known = None
        if known is None:
            if any(map(is_deferred, values)):
                return False
            are_plain = set(map(type, values)) <= PLAIN
            values = list(map(as_scalar, names, values))
            known = self._meet(key, names, smoothing_hint, are_plain)
            packed = known.packer.pack(*values)
        self.entries += known.names, packed
        self.together += len(names)
        if len(self.entries) + self.together > MAX_IN_STEP:
            self.when_full()
        return True

    def _meet(
        self, key: tuple[int, str], names: list[str], smoothing_hint: bool, are_plain: bool
    ) -> Together:
        known = self.known_together.get(key)
        if known is None or known.names != names or known.hint is not smoothing_hint:
            names = ["" + name for name in names]  # a TypeError if one is no string
            self.set_hint(names, smoothing_hint)
            if len(self.known_together) >= MAX_KNOWN_TOGETHER:
                self.known_together.clear()
            known = Together(names, smoothing_hint, struct.Struct(f"{len(names)}d"), are_plain)
        self.known_together[key] = known = known._replace(are_plain=are_plain)
        return known

    def put_numbers(self, numbers: dict[str, float | torch.Tensor], iteration: int) -> None:
        """What `EventStorage.put_numbers` does."""
        hints = self.hints_as_put
        pairs: list = []
        for name, number in numbers.items():
            if type(number) is not float:
                self.has_tensors = True
            if hints.get(name) is not True:
                name = self.full_name(name, True)
            pairs += name, number
        if iteration != self.iteration:
            pairs[::2] = [(name, iteration) for name in pairs[::2]]
        self.entries += pairs  # at once, as another thread may go to the next iteration
        if len(self.entries) > MAX_IN_STEP:
            self.when_full()

    def open_scope(self, prefix: str) -> None:
        """Put `prefix` before the names from now on; "" ends that."""
        self.prefix = prefix
        self.hints_as_put = {} if prefix else self.hints

    def full_name(self, name: str, smoothing_hint: bool) -> str:
        """The name with its prefix, where the hint fits it."""
        name = self.prefix + name
        if self.hints.get(name, ...) is not smoothing_hint:
            self.set_hint([name], smoothing_hint)
        return name

    def take_hint(self, name: str, smoothing_hint: bool) -> None:
        """Take the hint of a name that was put elsewhere: a first put here may have another."""
        if name not in self.hints:
            self.hints[name] = smoothing_hint
            self.foreign.add(name)

    def set_hint(self, names: list[str], smoothing_hint: bool) -> None:
        """Have this be the hint of names; refuse it where one was first put with the other."""
        hint = bool(smoothing_hint)
        changed = [name for name in names if self.hints.get(name, hint) is not hint]
        for name in changed:
            if name not in self.foreign:
                raise SmoothingHintError(
                    f"metric {name!r} was put with smoothing_hint={not hint} before and with "
                    f"{smoothing_hint} now; use one of them everywhere, or another name"
                )
        if changed:  # the program may have been changed since the checkpoint
            self.foreign.difference_update(changed)
            self.known_together.clear()  # which may have them with the other hint
        self.hints.update(dict.fromkeys(names, hint))

    def take(self) -> "tuple[list[Name], array[float]]":
        """Empty the log: names and values as they came. Tensors become numbers.

        There are more values than names where some were put together: see `flatten`.
        """
        entries, end = self.entries, len(self.entries)
        has_just_begun = entries[end - 2] is None  # an iteration
        end -= 2 * has_just_begun
        names, values = entries[:end:2], entries[1:end:2]
        # What other threads put meanwhile stays, in the iteration that it was put in.
        entries[:end] = () if has_just_begun else (None, values[-1 - names[::-1].index(None)])
        if names[1:2] == [None]:  # nothing came in the first iteration
            del names[0], values[0]
        self.together = 0
        if self.has_tensors:
            self.has_tensors = False
            places = [at for at, value in enumerate(values) if isinstance(value, torch.Tensor)]
            numbers = fetch([values[at] for at in places])
            for at, number in zip(places, numbers, strict=True):
                values[at] = number
        # `struct` is several times as quick as `array` in reading a list.
        try:
            return names, array("d", struct.pack(f"{len(values)}d", *values))
        except struct.error:  # some were put together, and are packed
            if names != self.names_of_packer:
                kinds = [f"{len(one)}s" if type(one) is bytes else "d" for one in values]
                self.names_of_packer, self.packer = names, struct.Struct("=" + "".join(kinds))
            return names, array("d", self.packer.pack(*values))


def flatten(names: Iterable[Name]) -> list[str | tuple[str, int] | None]:
    """The names of a log with those that were put together one by one, as the values are."""
    flat: list[str | tuple[str, int] | None] = []
    for name in names:
        if isinstance(name, list):
            flat += name
        else:
            flat.append(name)
    return flat


def find_iterations(
    names: Iterable[Name], values: Iterable[float]
) -> tuple[list[str | None], list[int]]:
    """The metrics of a log, and the iteration of each value; None where one begins."""
    iteration = 0
    metrics: list[str | None] = []
    iterations = []
    for name, value in zip(flatten(names), values, strict=True):
        if name is None:
            iteration = int(value)
        if isinstance(name, tuple):
            metrics.append(name[0])
            iterations.append(name[1])
        else:
            metrics.append(name)
            iterations.append(iteration)
    return metrics, iterations


def _checked_iteration(what: str, iteration: float) -> int:
    if not -(2**53) <= iteration <= 2**53:
        raise ValueError(f"{what}: {iteration} is no iteration")
    return int(iteration)
