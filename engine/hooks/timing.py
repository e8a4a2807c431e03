"""IterationTimer: the time of each step, and the speed of the whole run."""

import datetime
import logging
from time import perf_counter
from typing import Any

from engine.hooks.base import HookBase, Priority

logger = logging.getLogger(__name__)


class IterationTimer(HookBase):
    """Stores the seconds that each step took, without the hooks after it, as the scalar `time`.

    The first `warmup_iter` steps are slower than the rest: all but the last of them are left out,
    here and, after a resume too, in the summary that is logged at the end.
    """

    priority = Priority.HIGHEST  # so that its time is that of the step, not of other hooks

    def __init__(self, warmup_iter: int = 3) -> None:
        self._warmup_iter = warmup_iter

    def before_train(self) -> None:
        self._first_timed = self.trainer.start_iter + self._warmup_iter - 1
        # A gap in the curve of a resumed run would leave its last value to a line of its own.
        self._is_resumed = "time" in self.trainer.storage.histories()
        self._put = self.trainer.storage.put_scalar
        self._start = self._step_start = perf_counter()
        self._seconds_in_steps = 0.0
        self._timed_steps = 0

    def before_step(self) -> None:
        self._step_start = perf_counter()

    def after_step(self) -> None:
        seconds = perf_counter() - self._step_start
        if self.trainer.iter >= self._first_timed:
            self._seconds_in_steps += seconds
            self._timed_steps += 1
            self._put("time", seconds)
        else:
            self._start = perf_counter()
            if self._is_resumed:
                self._put("time", seconds)

    def after_train(self) -> None:
        total = perf_counter() - self._start
        if self._timed_steps:
            seconds = self._seconds_in_steps / self._timed_steps
            samples = _samples_per_step(self.trainer)
            logger.info(
                "Overall training speed: %d iterations in %s (%.4f s / it)%s",
                self._timed_steps,
                _readable(self._seconds_in_steps),
                seconds,
                f", {samples / seconds:,.0f} samples / s" if samples else "",
            )
        logger.info(
            "Total training time: %s (%s on hooks)",
            _readable(total),
            _readable(total - self._seconds_in_steps),
        )


def _samples_per_step(trainer: Any) -> int:
    """On all ranks together; 0 where the loader does not say."""
    inner = getattr(trainer, "_trainer", trainer)
    loader = getattr(inner, "data_loader", None)
    return getattr(loader, "total_batch_size", 0) * getattr(inner, "accumulate", 1)


def _readable(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))
