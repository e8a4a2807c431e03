"""Processes that this one has started, looked at without taking their exit codes."""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress


class Ends:
    """How processes have ended.

    A process can be waited for once: to ask multiprocessing, as `active_children` does, would take
    its exit code from under torch's agent, which then fails.
    """

    def __init__(self) -> None:
        self.good: set[int] = set()  # pids of those that have ended with the exit code 0
        self._failed: set[int] = set()
        self._watched: set[int] = set()

    def watch(self, pids: Iterable[int]) -> None:
        """Have these processes among those that are told about."""
        for pid in pids:
            if pid not in self._watched and hasattr(os, "waitid"):
                self._watched.add(pid)
                threading.Thread(target=self._wait_for, args=(pid,), daemon=True).start()

    def take_failed(self) -> set[int]:
        """The pids of those that have failed since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def _wait_for(self, pid: int) -> None:
        with suppress(ChildProcessError):  # somebody was quicker
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            is_good = end is not None and (end.si_code, end.si_status) == (os.CLD_EXITED, 0)
            (self.good if is_good else self._failed).add(pid)


def is_running(pid: int) -> bool:
    """Whether a process that this one has started goes on."""
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        os.kill(pid, 0)  # on a Mac
    except OSError:
        return False
    return True


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to those of the processes that go on."""
    for pid in filter(is_running, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
