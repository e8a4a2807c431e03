"""The stacks of a process that crashes, or is asked where it is, in a file that survives it."""

import atexit
import faulthandler
import os
import signal
from typing import IO

_STDERR = 2  # its descriptor: sys.stderr may be anything

_file: IO[str] | None = None
_owner = 0  # the process that opened the file: one forked from it must not delete it


def report_faults_to(path: str) -> None:
    """Have the stacks of all threads appended to a file when the process crashes or gets SIGUSR2.

    A crash is a segmentation fault, an abort, a bus error, an illegal instruction or a division
    by zero in C. Processes forked from this one write to the file too. It is deleted at the end
    if nothing was written.
    """
    global _file, _owner
    close_fault_file()
    atexit.register(close_fault_file)
    _file, _owner = open(path, "a", encoding="utf-8"), os.getpid()  # noqa: SIM115
    _report_to(_file)


def report_faults_of_worker() -> None:
    """Have the stacks of a loader's worker in the file too; called in a worker when it starts."""
    if _file is not None:
        from torch.utils.data._utils import signal_handling

        # Torch has put its handlers in the place of ours. They come after ours now, as they say
        # what a bus error may mean.
        faulthandler.disable()
        signal_handling._set_worker_signal_handlers()
        faulthandler.enable(_file)


def fault_file() -> IO[str] | int:
    """Where faults are reported: an open file, or the descriptor of the standard error."""
    return _file or _STDERR


def close_fault_file() -> None:
    """Report to the standard error from now on, and delete the file if it is empty."""
    global _file
    if _file is None or os.getpid() != _owner:
        return
    _report_to(_STDERR)
    if os.fstat(_file.fileno()).st_size == 0 and os.path.exists(_file.name):
        os.remove(_file.name)
    _file.close()
    _file = None
    atexit.unregister(close_fault_file)


def _report_to(file: IO[str] | int) -> None:
    faulthandler.enable(file)
    if hasattr(faulthandler, "register"):  # not on Windows
        # A handler of the program's own is called after ours; the default would end the process.
        has_own = callable(signal.getsignal(signal.SIGUSR2))
        faulthandler.register(signal.SIGUSR2, file, chain=has_own)
