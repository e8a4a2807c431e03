"""Period: how often something happens, in iterations, epochs or time."""

from time import monotonic
from typing import Protocol

from engine.utils.durations import seconds_in
from engine.utils.lengths import parse_length


class Clock(Protocol):
    """What a period reads of a trainer."""

    iter: int

    def epoch_of(self, iteration: int) -> int | None: ...


class Period:
    """`500` (iterations), `"2 epoch"` or `"10 min"` (also "90 s", "1h30min"); 0 means never.

    It may change in the course of training: `"1000; 100 from 9000"`, `"0; 1 epoch from 20 epoch"`.
    """

    def __init__(self, spec: "int | str | Period") -> None:
        self.spec: int | str = spec.spec if isinstance(spec, Period) else spec
        first, *later = str(self.spec).split(";")
        self._iterations, self._epochs, self._seconds = _parse(first if later else self.spec)
        self._later = [_parse_later(type(self), text) for text in later]
        self._last: float | None = None  # when one in time has ended

    @property
    def is_in_time(self) -> bool:
        """Whether it is one of seconds, minutes or hours."""
        return self._seconds > 0 or any(period.is_in_time for _, period in self._later)

    @property
    def is_in_epochs(self) -> bool:
        """Whether the length of an epoch matters to it."""
        later = (epochs or period.is_in_epochs for (_, epochs), period in self._later)
        return bool(self._epochs or any(later))

    @property
    def is_never(self) -> bool:
        """Whether it is one of 0."""
        return not (self._iterations or self._epochs or self._seconds or self._later)

    def is_due(self, clock: Clock) -> bool:
        """Whether a period ends with the clock's current iteration. Ask once an iteration."""
        current = self
        for start, period in self._later:
            if self._has_begun(start, clock):
                current = period
        return current._is_over(clock)

    def _is_over(self, clock: Clock) -> bool:
        if self._iterations:
            return (clock.iter + 1) % self._iterations == 0
        if self._epochs:
            before, after = self._epoch(clock, clock.iter), self._epoch(clock, clock.iter + 1)
            return before // self._epochs != after // self._epochs
        if not self._seconds:
            return False
        now = monotonic()
        if self._last is None:  # the time to build all that is needed is not one of training
            self._last = now
        is_over = now - self._last >= self._seconds
        if is_over:
            self._last = now
        return is_over

    def _has_begun(self, start: tuple[int, float], clock: Clock) -> bool:
        iterations, epochs = start
        return clock.iter >= iterations and (not epochs or self._epoch(clock, clock.iter) >= epochs)

    def _epoch(self, clock: Clock, iteration: int) -> int:
        if (epoch := clock.epoch_of(iteration)) is None:
            raise ValueError(
                f"the period {self.spec!r} needs the length of an epoch, which the data loader "
                "does not tell; give the period in iterations, or a loader with a length"
            )
        return epoch

    def __repr__(self) -> str:
        return f"Period({self.spec!r})"


def read_period(spec: int | str | Period, kind: type[Period] = Period) -> int | Period:
    """The period as hooks keep it: an int for iterations, which users of detectron2 compare and
    assign (`hook._period = 100`), else a `kind`."""
    period = kind(spec)
    is_number = not (period._epochs or period._seconds or period._later)
    return period._iterations if is_number else period


def is_due(period: int | Period, clock: Clock) -> bool:
    """Whether what `read_period` gave ends with the clock's current iteration."""
    if isinstance(period, Period):
        return period.is_due(clock)
    return period > 0 and (clock.iter + 1) % period == 0


def _parse_later(kind: type[Period], text: str) -> tuple[tuple[int, float], Period]:
    """What "100 from 9000" says: from where on, and the period."""
    spec, _, start = text.partition(" from ")
    length = parse_length(start)
    if length is None or length[1] != int(length[1]):
        raise ValueError(f"a period that changes is like '1000; 100 from 9000', got {text!r}")
    return length, kind(spec)


def _parse(spec: int | str) -> tuple[int, int, float]:
    """The period as iterations, epochs and seconds, of which at most one is not 0."""
    if (length := parse_length(spec)) is not None:
        iterations, epochs = length
        if epochs == int(epochs):
            return max(iterations, 0), int(epochs), 0.0
    elif isinstance(spec, str) and (seconds := seconds_in(spec)) is not None:
        return 0, 0, seconds
    raise ValueError(
        f"a period is a number of iterations, or like '2 epoch', '10 min', '90 s' or '1.5 h'; "
        f"got {spec!r}"
    )
