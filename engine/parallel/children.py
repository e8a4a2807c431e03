"""Processes that were started, looked at without taking their exit codes; and how they end."""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.resource_tracker import ensure_running, getfd
from pathlib import Path
from typing import Any, NoReturn

PATIENCE = 5.0  # seconds that are given to a process to end by itself
LONGEST_SAVE = 300.0  # seconds that those which have saved wait for those that have not


class Ends:
    """How processes have ended.

    A process can be waited for once: to ask multiprocessing, as `active_children` does, would take
    its exit code from under torch's agent, which then fails.
    """

    def __init__(self) -> None:
        self.good: set[int] = set()  # pids of those that have ended with the exit code 0
        self._failed: set[int] = set()
        self._watched: set[int] = set()
        self._peers: dict[int, set[int]] = {}  # by pid, those that have run beside it

    def watch(self, pids: Iterable[int]) -> None:
        """Have these processes among those that are told about."""
        pids = set(pids)
        running = set(filter(is_running, pids))
        for pid in running:
            self._peers.setdefault(pid, set()).update(running)
        for pid in pids - self._watched if hasattr(os, "waitid") else ():
            self._watched.add(pid)
            threading.Thread(target=self._wait_for, args=(pid,), daemon=True).start()

    def find_peers(self, pids: Iterable[int]) -> set[int]:
        """Those that ran beside these when they were watched, and these."""
        return set().union(pids, *(self._peers.get(pid, ()) for pid in pids))

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


def spawned_pids() -> set[int]:
    """The processes that multiprocessing has started here and nobody has waited for, but for
    daemons, as data workers are."""
    children = list(multiprocessing.process._children)  # type: ignore[attr-defined]
    return {child.pid for child in children if child.pid and not child.daemon}


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to those of the processes that go on."""
    for pid in filter(is_running, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def keep_end_to_itself() -> None:
    """Have the end of this process, which multiprocessing has spawned, be seen at once.

    Whoever waits for it does so for the end of a pipe, which the processes that this one starts
    would hold open: data workers, or what `os.system` leaves in the background.
    """
    known: set[int | None] = {
        one.fileno() for one in gc.get_objects() if type(one) is Connection and not one.closed
    }
    known |= {getfd()}  # forked processes need these: a queue of the user's, and this one
    process = os.getpid()
    descriptors = os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()
    for descriptor in map(int, descriptors):
        with suppress(OSError):  # the one that the folder was read by is closed
            is_pipe = descriptor > 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
            if is_pipe and os.get_inheritable(descriptor) and _is_for_writing(descriptor):
                os.set_inheritable(descriptor, False)
                if descriptor not in known:
                    os.register_at_fork(after_in_child=partial(_close_in, process, descriptor))


@contextmanager
def quiet_resource_tracker() -> Iterator[None]:
    """Have Python not end with words about the semaphores of processes that were killed, nor of the
    process that counts them: SIGUSR1 to the whole group, as from Slurm, would end it."""
    sys.warnoptions.append("ignore:resource_tracker")  # it is started with these options
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")


def tell_of_leaving(file: Path) -> None:
    """Have `os._exit(0)` of this process, not of those it forks, make the file first: the launcher
    is not sure to see the exit code, which torch's agent takes."""
    leave, process = os._exit, os.getpid()

    def tell_and_leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == process:
            file.touch()
        leave(status)

    os._exit = tell_and_leave


def end_with_parent() -> None:
    """Have this process die when the one that has started it is killed: a rank with its launcher,
    whose folder may then be another run's, and a data worker with its rank."""
    threading.Thread(target=_end_after_parent, daemon=True).start()


def end_in_time() -> None:
    """Have this process end, for which others wait, though a thread of the user's own would keep
    it, or a collective that is under way: torch waits for that when Python has long ended."""
    with suppress(OSError):  # this process may have all the files open that it can
        nowhere = os.open(os.devnull, os.O_WRONLY)
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=nowhere)
    with suppress(RuntimeError):  # there are no new threads any more: the process is at its end
        call_later(PATIENCE, os._exit, 1)  # a fork cancels the other one


def call_later(seconds: float, function: Callable[..., Any], *args: Any) -> None:
    """Call a function in a while, unless the process has ended by then."""
    timer = threading.Timer(seconds, function, args)
    timer.daemon = True
    timer.start()


def exit_with(code: Any) -> NoReturn:
    """End this process as `sys.exit(code)` does, without the last of Python's own end: C++ threads
    of process groups that are at work by then abort it now and then, with another exit code."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)


def _end_after_parent() -> None:
    parent, number = multiprocessing.parent_process(), os.getppid()
    # Siblings that are forked hold open what `join` waits for, so the number is looked at too. That
    # of a fork server tells nothing of the parent.
    while os.getppid() == number and (parent is None or parent.is_alive()):
        parent.join(1) if parent else time.sleep(1)  # there is none under torchrun
    os.kill(os.getpid(), signal.SIGKILL)


def _is_for_writing(descriptor: int) -> bool:
    import fcntl  # not on Windows

    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def _close_in(parent: int, descriptor: int) -> None:
    if os.getppid() == parent:  # in others it may be anything by now
        os.close(descriptor)
