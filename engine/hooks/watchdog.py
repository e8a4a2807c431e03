"""Watchdog: says where a run hangs."""

import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections import deque
from datetime import timedelta
from functools import cache
from statistics import median
from time import monotonic
from types import FrameType

from torch.utils.data import dataloader

from engine.data.workers import hand_out, under_way
from engine.hooks.base import HookBase, Priority
from engine.hooks.hook_list import HookList
from engine.utils.durations import parse_duration
from engine.utils.endless import EndlessIterator
from engine.utils.faults import fault_file

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 5.0  # seconds between two looks
CALLS_OF_HOOKS = (HookList.run.__code__, HookList._try_all.__code__)
LOADING = "loading data"


class Watchdog(HookBase):
    """Warns when no step ends for `timeout`, and for `factor` times what a step usually takes.

    The warning says what is running, with the samples that are being loaded, and gives the stacks
    of all threads. It comes again after twice the time, four times the time and so on. What took
    long once is given twice that time from then on. Batches of an evaluation are progress.

    A thread looks now and then where the run is; a step costs nothing. Where it gets no chance to,
    as a call of C keeps Python's lock, the stacks go to the run's `faults.txt` (see
    `engine.utils.faults`), else to the standard error.
    """

    priority = Priority.LOWEST  # the last to end: what other hooks do after training is watched

    def __init__(self, timeout: str = "10 min", factor: float = 10.0) -> None:
        self._timeout = parse_duration(timeout)
        self._factor = factor
        self._pause = min(self._timeout / 20, LONGEST_PAUSE)
        self._eval_steps = 0
        self._thread: threading.Thread | None = None

    def before_train(self) -> None:
        _cancel_timer_in_forks()
        self._watched = threading.get_ident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._set_timer(self._timeout)
        self._thread.start()

    def before_eval_step(self) -> None:
        self._eval_steps += 1

    def after_train(self) -> None:
        if self._thread is not None:
            self._end.set()
            self._thread.join(timeout=10)  # it may itself hang in writing to a dead disk
            self._thread = None

    def _run(self) -> None:
        watch = Watch(self._timeout, self._factor, self._watched)
        last = monotonic()
        while not self._end.wait(self._pause):
            self._set_timer(watch.limit)
            now = monotonic()
            if now - last > self._timeout:
                logger.warning(
                    "This process did not run for %s: it was stopped, or the machine slept, or a "
                    "call of C kept Python's lock (its stack is in faults.txt then)",
                    _readable(now - last),
                )
            # Time in which nothing could run says nothing about the run.
            watch.look(self.trainer.iter, self._eval_steps, min(now - last, 2 * self._pause))
            last = now
        faulthandler.cancel_dump_traceback_later()

    def _set_timer(self, seconds: float) -> None:
        # A thread of C: it writes the stacks if this is not called again in time. Late, as it may
        # crash Python where that runs after all, as in a process that was stopped for so long.
        faulthandler.dump_traceback_later(2 * seconds, file=fault_file())


class Watch:
    """What is known of the progress of a thread that trains; `look` at it every now and then."""

    def __init__(self, timeout: float, factor: float, thread_id: int) -> None:
        self._timeout, self._factor, self._thread_id = timeout, factor, thread_id
        self._step_times: deque[float] = deque(maxlen=100)
        self._longest: dict[str, float] = {}  # without progress, by place
        self._iteration = self._eval_steps = -1
        self._is_step = False  # whether what has begun is one: not known before the first look
        self._silent = self._silent_before = 0.0  # seconds without progress; those elsewhere
        self._place = self._reported_place = ""
        self._reports = 0

    @property
    def limit(self) -> float:
        """Seconds without progress that are too many, at the place where the run is."""
        usual = median(self._step_times) if self._step_times else 0.0
        return max(self._timeout, self._factor * usual, 2 * self._longest.get(self._place, 0.0))

    def look(self, iteration: int, eval_steps: int, passed: float) -> None:
        """See where the run is, `passed` seconds after the last time."""
        self._silent += passed
        if (iteration, eval_steps) != (self._iteration, self._eval_steps):
            if self._reports:
                self._longest[self._reported_place] = self._silent
                logger.warning("The run goes on, after %s", _readable(self._silent))
            elif iteration > self._iteration and self._is_step:
                self._step_times.append(self._silent / (iteration - self._iteration))
            # From a batch of an evaluation to the next iteration is not the time of a step.
            self._is_step = iteration != self._iteration
            self._iteration, self._eval_steps = iteration, eval_steps
            self._silent, self._place, self._reports = 0.0, "", 0
            return
        frames = sys._current_frames()
        try:
            self._look_at(frames, passed)
        finally:
            frames.clear()  # this call's own is among them: a cycle, which keeps what a step made

    def _look_at(self, frames: dict[int, FrameType], passed: float) -> None:
        stack = [frame for frame, _ in traceback.walk_stack(frames[self._thread_id])]
        place = " > ".join(_places(stack)) or "the loop"
        if place != self._place:
            self._place, self._silent_before = place, self._silent - passed
        if self._silent >= self.limit * 2**self._reports:
            self._reports += 1
            self._reported_place = place
            self._report(stack, frames)

    def _report(self, stack: list[FrameType], frames: dict[int, FrameType]) -> None:
        usual = "No step was timed yet."
        if self._step_times:
            usual = f"A step usually takes {_readable(median(self._step_times))}."
        logger.warning(
            "No progress for %s, at iteration %d. Running for %s: %s%s. %s\n%s",
            _readable(self._silent),
            self._iteration,
            _readable(self._silent - self._silent_before),
            self._place,
            _details(stack),
            usual,
            _stacks(frames, first=self._thread_id),
        )


def _places(stack: list[FrameType]) -> list[str]:
    """What is running, from the outside to the inside; `stack` is the other way round."""
    places: list[str] = []
    for frame in reversed(stack):
        code = frame.f_code
        if code in CALLS_OF_HOOKS and "call" in (values := frame.f_locals):
            places.append(f"{type(values['call'].hook).__name__}.{values['point']}")
        elif code.co_name == "run_step":
            places.append("run_step")
        elif code is EndlessIterator.__next__.__code__ or code.co_filename == dataloader.__file__:
            places.append(LOADING)
    return list(dict.fromkeys(places))


def _details(stack: list[FrameType]) -> str:
    """The samples that are being read, or the time that the hook took so far."""
    for frame in stack:
        if frame.f_code is hand_out.__code__:
            return f", reading {under_way(frame.f_locals['loader'])}"
        if frame.f_code in CALLS_OF_HOOKS and "call" in frame.f_locals:
            return f" ({_readable(frame.f_locals['call'].seconds)} in all before)"
    return ""


def _stacks(frames: dict[int, FrameType], first: int) -> str:
    """The stacks of all threads but this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frames[number]))}"
        for number in sorted(frames, key=lambda number: number != first)
        if number != threading.get_ident()
    )


def _readable(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


@cache
def _cancel_timer_in_forks() -> None:
    """A process that is forked while faulthandler's timer runs would wait for it for ever."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=faulthandler.cancel_dump_traceback_later)
