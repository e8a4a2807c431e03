"""A claim on a folder: two runs in it would overwrite each other's files."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds: a run that was told to stop may still be saving


class FolderInUseError(RuntimeError):
    """Another process holds the claim on a folder."""


@contextmanager
def claim(folder: str) -> Iterator[bool]:
    """Be the only process that runs in a folder; waits a while for one that is about to end, and
    gives whether there was one.

    The claim ends with the process, however that ends, also on another machine. Where the file
    system has no locks, there are no claims.
    """
    if not folder or (file := _open(folder)) is None:
        yield False
        return
    try:
        has_waited = _lock(file, folder)
        with suppress(OSError):  # the disk may be full: then others are not told who it is
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield has_waited
    finally:
        os.close(file)


def _open(folder: str) -> int | None:
    if fcntl is None:
        return None
    try:
        return os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # what needs the folder will say so better
        return None


def _lock(file: int, folder: str) -> bool:
    end, is_told = monotonic() + PATIENCE, False
    while _is_held(file):
        owner = os.pread(file, 1000, 0).decode(errors="replace") or "another process"
        if monotonic() > end:
            raise FolderInUseError(
                f"{owner} trains in {folder}: stop it, or give this run another OUTPUT_DIR"
            )
        if not is_told:
            logger.warning("Waiting %.0f s for %s: it trains in %s", PATIENCE, owner, folder)
            is_told = True
        sleep(0.1)
    return is_told


def _is_held(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by workers of a loader
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # no locks here
        return False
    return False
