"""CommonMetricPrinter: one line of progress on the console."""

import datetime
import logging
import math
import time

import torch

from engine.events.current import get_event_storage
from engine.events.history import median
from engine.events.readings import Readings
from engine.events.storage import EventStorage
from engine.events.writer import EventWriter, WindowSize

MAX_SECONDS = 10**13  # more cannot be shown
TIMES = 200  # of steps, that the time to the end is told from


class CommonMetricPrinter(EventWriter):
    """Logs the losses, times, learning rate, memory and, with `max_iter`, the time to the end.

    Besides names with "loss" in them it shows those that contain "[metric]", unless their latest
    value is older than the line before and than the window. A step's only loss, which is its
    `total_loss`, is shown under that name alone. It stores the time to the end as the
    scalar `eta_seconds`.
    """

    _window_size = WindowSize()

    def __init__(self, max_iter: int | None = None, window_size: int | None = None) -> None:
        self.logger = logging.getLogger(__name__)
        self._max_iter = max_iter
        self._window_size = window_size
        self._last_write: tuple[int, float] | None = None  # iteration and time of the last line
        self._names: list[str] = []  # of all metrics
        self._shown_names: list[str] = []  # of these, the ones in a line where they are recent

    def write(self) -> None:
        storage = get_event_storage()
        if storage.iter == self._max_iter:
            return  # the run is over: there is no progress left to report
        self.logger.info(self._line(storage))
        self._last_write = (storage.iter, time.perf_counter())

    def rewind(self, iteration: int) -> None:
        self._last_write = None

    def _line(self, storage: EventStorage) -> str:
        window = self._window_size
        values = storage.readings(window)
        fields = [f"iter: {storage.iter}"]
        recent_names = self._recent_names(storage.iter - window, values)
        losses = [name for name in recent_names if "loss" in name]
        of_step = [name for name in losses if "/" not in name]  # not of an evaluation
        is_same = len({values[name][:2] for name in of_step}) == 1
        if len(of_step) == 2 and "total_loss" in of_step and is_same:
            of_step.remove("total_loss")
            losses.remove(of_step[0])  # the only loss is the sum of all
        metrics = [name for name in recent_names if "loss" not in name]
        fields += [f"{name}: {values[name][0]:.4g}" for name in losses + metrics]
        for name in ("time", "data_time"):
            if name in values:
                recent = storage.recent(name, window)
                fields.append(f"{name}: {sum(recent) / len(recent):.4f}")
                fields.append(f"last_{name}: {recent[-1]:.4f}")
        if "lr" in values:
            fields.append(f"lr: {storage.recent('lr', 1)[-1]:.5g}")
        if torch.cuda.is_initialized():
            fields.append(f"max_mem: {torch.cuda.max_memory_allocated() / 2**20:.0f}M")
        if eta := self._get_eta(storage):
            fields.insert(0, f"eta: {eta}")
        return " " + "  ".join(fields)

    def _recent_names(self, before: int, values: Readings) -> list[str]:
        # The result of an evaluation would stand in every later line, as if it were of that step.
        if self._last_write is not None:
            before = min(before, self._last_write[0])
        if self._names is not values.names:
            self._names = values.names
            self._shown_names = [name for name in values if "loss" in name or "[metric]" in name]
        return [name for name in self._shown_names if values[name][1] > before]

    def _get_eta(self, storage: EventStorage) -> str:
        seconds = self._seconds_left(storage)
        if seconds is None or not math.isfinite(seconds):
            return ""
        storage.put_scalar("eta_seconds", seconds, smoothing_hint=False)
        return str(datetime.timedelta(seconds=min(int(seconds), MAX_SECONDS)))

    def _seconds_left(self, storage: EventStorage) -> float | None:
        if self._max_iter is None:
            return None
        if "time" in storage.readings(self._window_size):
            # A median: one step that took long, as on a laptop that slept, is not what comes.
            times = storage.recent("time", TIMES)  # needs no history, if there is one a step
            is_all = len(times) == TIMES
            seconds = median(times) if is_all else storage.history("time").median(TIMES)
        elif self._last_write and storage.iter > self._last_write[0]:
            last, last_time = self._last_write
            seconds = (time.perf_counter() - last_time) / (storage.iter - last)
        else:
            return None
        return seconds * max(self._max_iter - storage.iter - 1, 0)
