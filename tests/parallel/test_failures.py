import logging
import os

import pytest
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from engine.parallel.failures import NOISY, FailureReports


@pytest.fixture
def report(job):
    """What is told about an error that torch's launcher logs, on a machine with ranks 2 and 3, and
    whether it was an exception."""

    def tell_about(error: Exception) -> tuple[str, bool]:
        told: list[tuple[str, bool]] = []
        with FailureReports(job, lambda *report: told.append(report)):
            try:
                raise error
            except Exception:
                logging.getLogger(NOISY[0]).exception("failed (exitcode: %s)", 1)
        (report,) = told
        return report

    return tell_about


def test_a_killed_process_is_named_with_its_signal(report):
    error = ProcessExitedException("", 1, 77, exit_code=-11, signal_name="SIGSEGV")
    assert report(error) == ("Rank 3 was killed by SIGSEGV", False)
    error = ProcessExitedException("", 0, 77, exit_code=-9, signal_name="SIGKILL")
    text, _ = report(error)
    assert text.startswith("Rank 2 was killed by SIGKILL")
    assert "memory" in text


def test_an_exit_code_is_told(report):
    error = ProcessExitedException("", 1, 77, exit_code=3)
    assert report(error) == ("Rank 3 ended with exit code 3", False)


def test_of_several_errors_the_first_one_is_told_and_told_once(report, job):
    for local_rank, error, seconds in [
        (0, RuntimeError("Connection closed by peer"), 2000),
        (1, ZeroDivisionError("division by zero \udce9"), 1000),
    ]:
        job.note_failure(local_rank, error, is_mistake=False)
        os.utime(job.failure(local_rank), (seconds, seconds))
    echo = ProcessExitedException("", 0, 77, exit_code=1)
    text = "Rank 3 failed with exit code 1:\nZeroDivisionError: division by zero \\udce9"
    assert report(echo) == (text, True)
    assert report(echo) == ("Rank 2 ended with exit code 1", False)


def test_the_death_of_a_rank_counts_more_than_the_error_of_one_that_missed_it(report, job):
    job.note_failure(0, RuntimeError("Connection closed by peer"), is_mistake=False)
    death = ProcessExitedException("", 1, 77, exit_code=-11, signal_name="SIGSEGV")
    assert report(death) == ("Rank 3 was killed by SIGSEGV", False)


def test_an_error_outside_the_function_is_told_as_torch_tells_it(report):
    text, _ = report(ProcessRaisedException("\n\n-- Process 1: ValueError: no", 1, 77))
    assert text == "Rank 3 failed:\n\n-- Process 1: ValueError: no"


def test_torch_is_quiet_meanwhile_and_no_longer(job, caplog):
    log = logging.getLogger(NOISY[0])
    with FailureReports(job, lambda text, has_raised: None):
        log.warning("Closing process 7 via signal SIGTERM")
    log.warning("afterwards")
    assert caplog.messages == ["afterwards"]
