"""Say what has happened to a process of the run: which rank, how it ended, its traceback."""

import logging
from collections.abc import Callable
from types import TracebackType

from torch.multiprocessing import ProcessExitedException
from torch.multiprocessing.spawn import ProcessException

from engine.parallel.job import Job

# They tell of a dead process in sixty lines, most of them about torch.
NOISY = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.multiprocessing.spawn",
)


class FailureReports(logging.Filter):
    """In a `with`, gives `tell` a few lines about each failure of the elastic launcher's processes,
    and whether it was an exception.

    What torch says itself is kept off the console.
    """

    def __init__(self, job: Job, tell: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._job = job
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
        if isinstance(error, ProcessException):
            has_raised = self._job.failure(error.error_index).exists()
            self._tell(self._describe(error, has_raised), has_raised)
        return record.levelno < logging.WARNING

    def _describe(self, error: ProcessException, has_raised: bool) -> str:
        if has_raised:
            # One error leads to others: the first is the one that counts.
            rank, traceback = self._job.take_first_failure()
            return f"Rank {rank} failed with exit code 1:\n{traceback}"
        rank = self._job.machine_rank * self._job.num_processes + error.error_index
        if not isinstance(error, ProcessExitedException):
            return f"Rank {rank} failed:{error}"
        if error.signal_name == "SIGKILL":
            return f"Rank {rank} was killed by SIGKILL: by hand, or for lack of memory (dmesg)"
        if error.signal_name:
            return f"Rank {rank} was killed by {error.signal_name}"
        return f"Rank {rank} ended with exit code {error.exit_code}"
