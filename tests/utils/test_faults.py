"""Each test runs a program: a crash, a signal and an end are things of a process."""

import os
import subprocess
import sys

import pytest

from engine.utils import faults as module

# Not by way of the package: importing torch takes seconds.
BEGIN = """
import ctypes, os, signal, sys
from faults import close_fault_file, fault_file, report_faults_to

def crash():
    ctypes.string_at(0)
"""


def run(tmp_path, program: str) -> tuple[subprocess.CompletedProcess, str | None]:
    """What became of a program, and what is in faults.txt."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.path.dirname(module.__file__)}, timeout=60,
    )  # fmt: skip
    file = tmp_path / "faults.txt"
    return done, file.read_text() if file.exists() else None


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("crash()", "Segmentation fault"),
        ("os.abort()", "Aborted"),
        ("signal.raise_signal(signal.SIGILL)", "Illegal instruction"),
    ],
)
def test_a_crash_leaves_the_stack_in_the_file(tmp_path, cause, error):
    program = f"report_faults_to('faults.txt')\ndef step():\n    {cause}\nstep()"
    done, faults = run(tmp_path, program)
    assert done.returncode < 0
    assert f"Fatal Python error: {error}" in faults
    assert "in step\n" in faults


def test_a_clean_end_leaves_no_file(tmp_path):
    program = "report_faults_to('faults.txt')\nassert os.path.exists('faults.txt')"
    done, faults = run(tmp_path, program)
    assert (done.returncode, done.stderr, faults) == (0, "", None)


def test_what_was_written_before_stays(tmp_path):
    (tmp_path / "faults.txt").write_text("an old fault\n")
    assert run(tmp_path, "report_faults_to('faults.txt')")[1] == "an old fault\n"


def test_a_signal_asks_for_the_stacks_and_the_program_goes_on(tmp_path):
    done, faults = run(
        tmp_path,
        "report_faults_to('faults.txt')\n"
        "def busy():\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)\n"
        "busy()\n"
        "print('goes on')",
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "in busy\n" in faults


def test_a_handler_of_the_programs_own_is_called_too(tmp_path):
    done, faults = run(
        tmp_path,
        "signal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
        "report_faults_to('faults.txt')\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n",
    )
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert "most recent call first" in faults


def test_a_forked_process_writes_to_the_file_and_does_not_delete_it(tmp_path):
    done, faults = run(
        tmp_path,
        "report_faults_to('faults.txt')\n"
        "if not os.fork():\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "assert os.path.exists('faults.txt')\n"
        "if not os.fork():\n"
        "    crash()\n"
        "os.wait()\n",
    )
    assert done.returncode == 0, done.stderr
    assert "in crash\n" in faults


def test_another_file_takes_the_place_of_the_first(tmp_path):
    _, faults = run(
        tmp_path,
        "report_faults_to('first.txt')\n"
        "report_faults_to('faults.txt')\n"
        "assert not os.path.exists('first.txt') and fault_file().name == 'faults.txt'\n"
        "crash()\n",
    )
    assert "in crash\n" in faults


def test_after_the_file_is_closed_the_standard_error_gets_the_report(tmp_path):
    done, faults = run(
        tmp_path,
        "report_faults_to('faults.txt')\n"
        "close_fault_file()\n"
        "close_fault_file()\n"
        "assert fault_file() == 2\n"
        "crash()\n",
    )
    assert faults is None
    assert "in crash\n" in done.stderr
