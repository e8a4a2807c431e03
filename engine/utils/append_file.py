"""AppendFile: a file that grows by whole entries, and that a full disk does not stop."""

import logging
import os
from collections import deque
from contextlib import suppress
from typing import IO

from engine.utils.files import PathManager, is_remote

logger = logging.getLogger(__name__)

MAX_WAITING = 32 * 2**20  # bytes of entries that wait for a disk: days of metrics and log lines


class AppendFile:
    """Appends entries to a file, each at once and whole, so that kill -9 loses at most one.

    An entry that cannot be written (full disk, quota, I/O error) waits in memory and is written
    before the next one; what is there of it in part is cut off. Warnings say when that begins, when
    it is over, and how many entries were dropped, the oldest, where more than `MAX_WAITING` bytes
    had to wait. Nothing is raised: a run of days does not end because of its log.

    A file that is deleted or moved meanwhile, as by logrotate, is made anew.

    `head` begins the file where it is new or empty.
    """

    def __init__(self, path: str, head: bytes = b"") -> None:
        self._path = path
        self._head = head
        self._file: IO[bytes] | None = None
        self._waiting: deque[bytes] = deque()
        self._torn = 0  # bytes at the end of the file that are a part of an entry
        self._dropped = 0
        self._is_failing = False
        self._has_inodes = not is_remote(path)

    def open(self) -> None:
        """Open it now, with an error where that fails; else the first write does."""
        self._file = self._open()

    def write(self, entry: bytes) -> None:
        self._waiting.append(entry)
        self._write_waiting()

    def take_stock(self) -> bytes:
        """Write what waits; returns what still cannot be written."""
        self._write_waiting()
        return b"".join(self._waiting)

    def close(self) -> None:
        """Write what waits, and close; a later write opens the file again.

        What still cannot be written then is lost. That is logged as an error and not raised: the
        weights of a run are worth more than the end of its curve.
        """
        if self._waiting:
            self._write_waiting()
        lost, self._dropped = len(self._waiting) + self._dropped, 0
        self._waiting.clear()
        self._is_failing = False
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # some network file systems tell only now
            logger.error("%s may lack its end: %s", self._path, error.strerror or error)
        self._file = None
        if lost:
            logger.error("%s lacks %d entries that could not be written", self._path, lost)

    def _write_waiting(self) -> None:
        waiting, was_gone = self._waiting, False
        try:
            if waiting and self._file is not None and not self._is_in_place(self._file):
                was_gone = True
                self._file.close()
                self._torn = 0
                self._file = self._open()
                self._has_inodes = self._is_in_place(self._file)  # not so on some network disks
            while waiting:
                if self._file is None:
                    self._file = self._open()
                self._append(self._file, waiting[0])
                waiting.popleft()
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()  # a new one may work where this one is stale
                self._file = None
            self._keep_waiting(error)
        else:
            if was_gone:
                logger.warning("%s was deleted or moved: it is begun anew", self._path)
            if self._is_failing:
                self._is_failing = False  # before the log line: it may go to this file
                lost = f"{self._dropped} entries are lost" if self._dropped else "nothing is lost"
                self._dropped = 0
                logger.warning("%s is written again; %s", self._path, lost)

    def _open(self) -> IO[bytes]:
        PathManager.mkdirs(os.path.dirname(self._path) or ".")
        file = PathManager.open(self._path, "ab", buffering=0)
        try:
            self._cut_torn_entry(file)
            if self._head and file.tell() == 0:
                self._append(file, self._head)
        except OSError:
            file.close()
            raise
        return file

    def _is_in_place(self, file: IO[bytes]) -> bool:
        if not self._has_inodes:
            return True
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _append(self, file: IO[bytes], entry: bytes) -> None:
        done = 0
        try:
            while done < len(entry):  # a disk that is nearly full takes a part
                done += file.write(entry[done:])
        except OSError:
            self._torn = done
            with suppress(OSError):  # else it is cut when the file is opened again
                self._cut_torn_entry(file)
            raise

    def _cut_torn_entry(self, file: IO[bytes]) -> None:
        if self._torn:
            end = file.seek(-self._torn, os.SEEK_END)
            file.truncate(end)
            self._torn = 0

    def _keep_waiting(self, error: OSError) -> None:
        # Counts and flags first: a log line may come back to this file.
        is_first, self._is_failing = not self._is_failing, True
        had_dropped, excess = self._dropped, sum(map(len, self._waiting)) - MAX_WAITING
        while excess > 0:
            excess -= len(self._waiting.popleft())
            self._dropped += 1
        if is_first:
            logger.warning(
                "%s cannot be written (%s). The run goes on; what belongs there waits in memory",
                self._path,
                error.strerror or error,
            )
        if self._dropped and not had_dropped:
            logger.warning(
                "More than %d MB wait for %s: the oldest are dropped",
                MAX_WAITING >> 20,
                self._path,
            )
