import subprocess
import sys

from engine.utils.console import reader_may_leave

PROGRAM = """
from engine.utils.console import reader_may_leave
with reader_may_leave():
    for number in range(100_000):
        print(number)
raise SystemExit(3)
"""


def test_what_its_reader_has_enough_of_is_dropped_in_silence():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (3, b"")


def test_what_is_read_is_all_there(capsys):
    with reader_may_leave():
        print("all of it")
    assert capsys.readouterr().out == "all of it\n"
