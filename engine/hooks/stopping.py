"""StopOnSignal, TimeLimit: end a run cleanly before it is killed, to be continued later."""

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from engine.hooks.base import HookBase, Priority
from engine.parallel import comm
from engine.utils.durations import parse_duration
from engine.utils.suggest import did_you_mean

logger = logging.getLogger(__name__)

REQUEUE_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: not done, try again
STARTED_AT = "ENGINE_STARTED_AT"  # variable with the time, by the monotonic clock, of a launch
MOMENT = 3.0  # seconds in which torchrun passes on a signal that the process has had itself
_IMPORTED = time.monotonic()
_NOT_EVERYWHERE = (  # signals that some systems lack: Windows most, Linux and macOS a few
    "SIGALRM SIGBREAK SIGBUS SIGCHLD SIGCLD SIGCONT SIGEMT SIGHUP SIGINFO SIGIO SIGIOT SIGPIPE "
    "SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT SIGSYS SIGTRAP SIGTSTP SIGTTIN "
    "SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ"
)


class StopOnSignal(HookBase):
    """Stops the run at a SIGTERM, SIGINT (Ctrl-C) or SIGUSR1, to be continued later.

    The current step ends, an evaluation in a single process is left, and the run is saved such that
    a resumed one is exactly what this one would have been. The same signal again ends the process
    at once; under torchrun, which passes on what Slurm has sent to the process too, not within
    three seconds. A signal that the process was started to ignore stays ignored, as does one that
    this system does not have. Only in the main thread, and in a trainer's `train`: a signal ends a
    loop of the user's own at once.
    """

    priority = Priority.LOWEST  # signals are minded until the last save is done

    def __init__(self, signals: Sequence[str] = ("SIGTERM", "SIGINT", "SIGUSR1")) -> None:
        if isinstance(signals, str):
            raise ValueError(f"signals must be a list of names, such as [{signals}]")
        here = signal.Signals.__members__
        known = {*here, *_NOT_EVERYWHERE.split()}
        for name in signals:
            if name not in known:
                hint = did_you_mean(name, known) or "'SIGTERM' is one"
                raise ValueError(f"there is no signal {name!r}; {hint}")
            if name in ("SIGKILL", "SIGSTOP"):
                raise ValueError(f"no process can receive {name}: the system acts on it by itself")
        self._signals = [here[name] for name in signals if name in here]
        self._previous: dict[int, Any] = {}
        self._received: dict[int, float] = {}  # when

    def before_train(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.info("Signals do not stop this run cleanly: it is not in the main thread")
            return
        if not self.trainer._heeds_stops:
            logger.info("Signals do not stop this run cleanly: its loop is not TrainerBase.train")
            return
        self._process = os.getpid()
        self._received.clear()
        for number in self._signals:
            previous = signal.getsignal(number)
            if previous not in (signal.SIG_IGN, None):  # None: a library in C has one of its own
                self._previous[number] = previous
                signal.signal(number, self._receive)

    def after_train(self) -> None:
        for number in list(self._previous):
            self._restore(number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """The handler. It does not log: the main thread may be in the middle of that."""
        name = signal.Signals(number).name
        if os.getpid() != self._process:  # a worker that was forked in the run
            # Ctrl-C and Slurm reach workers too, and the run needs them for its last step.
            if name == "SIGTERM":
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        now = time.monotonic()
        first = self._received.setdefault(number, now)
        if now > first + MOMENT:
            self._restore(number)
            signal.raise_signal(number)
        if now > first:
            return
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            self._restore(number)
        self.trainer.stop(f"{name} received", requeue=True)
        with suppress(OSError):
            os.write(2, f"{name}: stopping after this step; again to end at once\n".encode())

    def _restore(self, number: int) -> None:
        if (previous := self._previous.pop(number, None)) is not None:
            signal.signal(number, previous)


class TimeLimit(HookBase):
    """Stops the run before the process is older than `limit`, to be continued later.

    `limit` is like "3h50min", "90 min", "1d 2h" or "02:30:00". Room is left for two steps of the
    usual length and once more the longest so far, which had a save in it. An evaluation in a single
    process is left when the time is up; with several it is a part of its step.
    """

    priority = Priority.LOWEST  # the time that a save takes is then a part of its step

    def __init__(self, limit: str) -> None:
        self._limit = parse_duration(limit)
        self._text = limit

    def before_train(self) -> None:
        self._deadline = time.monotonic() - process_age() + self._limit
        self._is_over = False
        self._last: float | None = None  # when the step before ended; the first one is slower
        self._seconds = self._longest = 0.0
        self._steps = 0
        self._eval_start: float | None = None

    def after_step(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            seconds = now - self._last
            self._seconds += seconds
            self._steps += 1
            self._longest = max(self._longest, seconds)
        self._last = now
        usual = self._seconds / max(1, self._steps)
        self._stop_if_late(now + 2 * usual + self._longest)

    def before_eval(self) -> None:
        self._eval_start = time.monotonic()

    def before_eval_step(self) -> None:
        self._stop_if_late(time.monotonic() + self._longest)

    def after_eval(self, results: dict[str, Any]) -> None:
        # An evaluation that is left before its first step has no beginning.
        start, self._eval_start = self._eval_start, None
        if self._last is not None and start is not None and comm.get_world_size() == 1:
            self._last += time.monotonic() - start

    def _stop_if_late(self, end_of_next_step: float) -> None:
        if end_of_next_step > self._deadline and not self._is_over:
            self._is_over = True
            self.trainer.stop(f"the time limit of {self._text} is near", requeue=True)


def process_age() -> float:
    """Seconds since this process, or its launcher or torchrun, was started; without /proc, since
    engine was imported."""
    if STARTED_AT in os.environ:
        return time.monotonic() - float(os.environ[STARTED_AT])
    process = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else "self"
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # the name may hold spaces
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED
