import json
import logging
import os

import pytest
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from engine.parallel.failures import NOISY, FailureReports


@pytest.fixture
def report(tmp_path):
    """What is told about an error that torch's launcher logs, on a machine with ranks from 4 on."""

    def tell_about(error: Exception) -> str:
        told: list[tuple[str, bool]] = []
        with FailureReports(str(tmp_path), 4, lambda *report: told.append(report)):
            try:
                raise error
            except Exception:
                logging.getLogger(NOISY[0]).exception("failed (exitcode: %s)", 1)
        ((text, has_raised),) = told
        assert has_raised == isinstance(error, ProcessRaisedException)
        return text

    return tell_about


def write_error_file(folder, local_rank, text, seconds):
    path = folder / "run" / "attempt_0" / str(local_rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"message": {"extraInfo": {"py_callstack": text}}}))
    os.utime(path, (seconds, seconds))


def test_a_killed_process_is_named_with_its_signal(report):
    error = ProcessExitedException("", 1, 77, exit_code=-11, signal_name="SIGSEGV")
    assert report(error) == "Rank 5 was killed by SIGSEGV"
    error = ProcessExitedException("", 0, 77, exit_code=-9, signal_name="SIGKILL")
    assert report(error).startswith("Rank 4 was killed by SIGKILL")
    assert "memory" in report(error)


def test_an_exit_code_is_told(report):
    assert report(ProcessExitedException("", 2, 77, exit_code=3)) == "Rank 6 ended with exit code 3"


def test_of_several_errors_the_first_one_is_told_and_told_once(report, tmp_path):
    write_error_file(tmp_path, 0, "RuntimeError: Connection closed by peer\n", 2000)
    write_error_file(tmp_path, 3, "Traceback …\nZeroDivisionError: division by zero\n", 1000)
    echo = ProcessRaisedException("\n\n-- Process 0 terminated", 0, 77)
    assert report(echo) == (
        "Rank 7 failed with exit code 1:\nTraceback …\nZeroDivisionError: division by zero"
    )
    write_error_file(tmp_path / "again", 1, "KeyError: 'x'", 3000)
    assert report(echo) == "Rank 5 failed with exit code 1:\nKeyError: 'x'"


def test_an_error_without_a_file_is_told_as_torch_tells_it(report):
    text = report(ProcessRaisedException("\n\n-- Process 1: ValueError: no", 1, 77))
    assert text == "Rank 5 failed:\n\n-- Process 1: ValueError: no"


def test_torch_is_quiet_meanwhile_and_no_longer(tmp_path, caplog):
    log = logging.getLogger(NOISY[0])
    with FailureReports(str(tmp_path), 0, lambda text, has_raised: None):
        log.warning("Closing process 7 via signal SIGTERM")
    log.warning("afterwards")
    assert caplog.messages == ["afterwards"]
