"""JointPeriod: a period that ends with the same iteration on all ranks."""

from engine.parallel import comm
from engine.utils import periods
from engine.utils.periods import Clock, Period


class JointPeriod(Period):
    """A Period for a hook that all ranks have: one in time ends where rank 0's clock says so.

    Ranks ask only in iterations that they agreed on. Each time rank 0 says how many to let pass:
    half of those that its pace leaves of the period. That is a dozen questions in thousands of
    iterations.
    """

    def __init__(self, spec: int | str | Period) -> None:
        super().__init__(spec)
        self._asked = self._next = -1  # iterations
        self._asked_at = 0.0  # seconds
        self._are_epochs_equal = not self.is_in_epochs

    def is_due(self, clock: Clock) -> bool:
        if not self._are_epochs_equal:
            self._compare_epochs(clock)
        return super().is_due(clock)

    def _compare_epochs(self, clock: Clock) -> None:
        if len(set(comm.all_gather(clock.epoch_of(10**15)))) > 1:  # where any difference shows
            raise ValueError(
                f"the period {self.spec!r} has to end with the same iteration on all ranks, and "
                "their epochs are not equally long: give it in iterations"
            )
        self._are_epochs_equal = True

    def _is_over(self, clock: Clock) -> bool:
        if not self._seconds or comm.get_world_size() == 1:
            return super()._is_over(clock)
        if self._asked <= clock.iter < self._next:
            return False
        now = periods.monotonic()
        if self._last is None:
            self._last = now
        left = self._last + self._seconds - now
        if left <= 0:
            wait = 0
        elif 0 <= self._asked < clock.iter:
            seconds_each = max(now - self._asked_at, 1e-9) / (clock.iter - self._asked)
            wait = max(1, int(left / seconds_each / 2))
        else:
            wait = 1  # the pace is not known yet
        wait = comm.all_gather(wait)[0]
        if wait == 0:
            self._last = now
        self._asked, self._asked_at, self._next = clock.iter, now, clock.iter + max(1, wait)
        return wait == 0
