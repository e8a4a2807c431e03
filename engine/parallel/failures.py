"""Say what has happened to a process of the run: which rank, how it ended, its traceback."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

# They tell of a dead process in sixty lines, most of them about torch.
NOISY = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.multiprocessing.spawn",
)


class FailureReports(logging.Filter):
    """In a `with`, gives `tell` a few lines about each failure of the elastic launcher's processes,
    and whether it was an exception.

    `folder` is where these processes write their error files; `first_rank` is the rank of the
    first of them. What torch says itself is kept off the console.
    """

    def __init__(self, folder: str, first_rank: int, tell: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._first_rank = first_rank
        self._tell = tell

    def __enter__(self) -> None:
        for name in NOISY:
            logging.getLogger(name).addFilter(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in NOISY:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ProcessExitedException | ProcessRaisedException):
            self._tell(self._describe(error), isinstance(error, ProcessRaisedException))
        return record.levelno < logging.WARNING

    def _describe(self, error: ProcessExitedException | ProcessRaisedException) -> str:
        rank = self._first_rank + error.error_index
        if isinstance(error, ProcessExitedException):
            if error.signal_name == "SIGKILL":
                return f"Rank {rank} was killed by SIGKILL: by hand, or for lack of memory (dmesg)"
            if error.signal_name:
                return f"Rank {rank} was killed by {error.signal_name}"
            return f"Rank {rank} ended with exit code {error.exit_code}"
        # One error leads to others: the first is the one that counts.
        files = sorted(self._folder.rglob("error.json"), key=lambda path: path.stat().st_mtime_ns)
        if not files:
            return f"Rank {rank} failed:{error}"
        rank = self._first_rank + int(files[0].parent.name)
        traceback = json.loads(files[0].read_text())["message"]["extraInfo"]["py_callstack"]
        for path in files:  # the next failure is another story
            path.unlink()
        return f"Rank {rank} failed with exit code 1:\n{traceback.rstrip()}"
