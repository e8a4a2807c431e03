"""ScalarLog: the scalars of the last steps as they came, until someone reads them."""

import torch

from engine.events.scalar import fetch

NewValues = tuple[list[float], list[int]]  # of one scalar, and their iterations
Converted = list[tuple[str, float, int]]  # name, value and iteration of what was a tensor


class ScalarLog:
    """Scalars in the order they were put, with what a put has to know.

    `entries` is flat (name, value, iteration, name, …): a step leaves no other objects behind than
    its numbers, and reading it is a matter of slices.
    """

    __slots__ = ("entries", "has_tensors", "hints", "iteration", "prefix")

    def __init__(self, iteration: int) -> None:
        self.entries: list = []
        self.has_tensors = False
        self.hints: dict[str, bool] = {}  # by name, the smoothing hint
        self.iteration = iteration  # the current one
        self.prefix = ""  # of the name scopes that are open

    def check_hint(self, name: str, smoothing_hint: bool) -> None:
        """Refuse a hint that is not the one the name was first put with."""
        known = self.hints.setdefault(name, bool(smoothing_hint))
        if known is not bool(smoothing_hint):
            raise ValueError(
                f"metric {name!r} was put with smoothing_hint={known} before and with "
                f"{smoothing_hint} now; use one of them everywhere, or another name"
            )

    def take(self) -> tuple[dict[str, NewValues], Converted]:
        """Empty the log: its scalars by name, and those of them that were tensors until now."""
        entries = self.entries[:]
        del self.entries[: len(entries)]  # what another thread puts meanwhile stays
        names, values, iterations = entries[::3], entries[1::3], entries[2::3]
        converted: Converted = []
        if self.has_tensors:
            self.has_tensors = False
            places = [at for at, value in enumerate(values) if isinstance(value, torch.Tensor)]
            numbers = fetch([values[at] for at in places])
            for at, number in zip(places, numbers, strict=True):
                values[at] = number
                converted.append((names[at], number, iterations[at]))
        return _columns(names, values, iterations), converted


def _columns(names: list[str], values: list[float], iterations: list[int]) -> dict[str, NewValues]:
    # Most steps put the same names in the same order: then a column is every count-th value.
    start, count = _find_cycles(names) if names else (0, 0)
    columns: dict[str, NewValues] = {}
    for name, value, iteration in zip(names[:start], values, iterations, strict=False):
        column = columns.setdefault(name, ([], []))
        column[0].append(value)
        column[1].append(iteration)
    for at, name in enumerate(names[start : start + count], start):
        if name in columns:
            columns[name][0].extend(values[at::count])
            columns[name][1].extend(iterations[at::count])
        else:
            columns[name] = values[at::count], iterations[at::count]
    return columns


def _find_cycles(names: list[str]) -> tuple[int, int]:
    """From where to the end of the list the same names come again and again, and how many."""
    end = len(names)
    backwards = names[::-1]
    count = backwards.index(names[-1], 1) if names.count(names[-1]) > 1 else end
    cycle = names[-count:]
    if len(set(cycle)) == count:
        # What a write or an evaluation puts comes once, before the steps that follow it.
        for start in range(end % count, min(end, 4 * count), count):
            if names[start:] == cycle * ((end - start) // count):
                return start, count
    return end, 0
