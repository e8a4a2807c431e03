import multiprocessing
import signal
import subprocess
import sys
import time

import pytest

from engine.parallel.children import Ends, is_running, send, spawned_pids


def start(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code])


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ends_are_told_apart_and_exit_codes_are_left_to_others():
    good, bad = start("pass"), start("import sys; sys.exit(3)")
    ends = Ends()
    ends.watch([good.pid, bad.pid])
    ends.watch([good.pid])
    wait_until(lambda: good.pid in ends.good)
    failed: set[int] = set()
    wait_until(lambda: failed.update(ends.take_failed()) or failed == {bad.pid})
    assert ends.take_failed() == set()  # told once
    assert (good.wait(), bad.wait()) == (0, 3)


def test_those_that_run_at_one_time_are_peers():
    ends = Ends()
    first, second = start("import time; time.sleep(60)"), start("import time; time.sleep(60)")
    ends.watch([first.pid])
    ends.watch([first.pid, second.pid])
    for process in (first, second):
        process.kill()
    wait_until(lambda: not is_running(first.pid) and not is_running(second.pid))
    third = start("import time; time.sleep(60)")
    ends.watch([first.pid, second.pid, third.pid])
    assert ends.find_peers([second.pid]) == {first.pid, second.pid}
    assert ends.find_peers([third.pid]) == {third.pid}
    assert ends.find_peers([]) == set()
    third.kill()
    for process in (first, second, third):
        process.wait()


def test_a_signal_goes_to_processes_that_run():
    sleeping, ended = start("import time; time.sleep(60)"), start("pass")
    wait_until(lambda: not is_running(ended.pid))
    assert is_running(sleeping.pid)
    send(signal.SIGTERM, [sleeping.pid, ended.pid])
    assert sleeping.wait(30) == -signal.SIGTERM
    assert not is_running(sleeping.pid)
    assert ended.wait() == 0


@pytest.mark.parametrize(
    ("code", "exit_code", "said"), [(3, 3, ""), (True, 1, ""), (300, 44, ""), ("no", 1, "no\n")]
)
def test_a_process_exits_as_by_sys_exit(code, exit_code, said):
    program = (
        "import atexit, sys; from engine.parallel.children import exit_with\n"
        "import threading, time; atexit.register(print, 'at exit')\n"
        "say = lambda: (time.sleep(0.5), print('thread', end=' '))\n"
        "threading.Thread(target=say).start()\n"
        f"print('first', end=' '); exit_with({code!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        exit_code,
        "first thread at exit\n",
        said,
    )


def test_processes_that_multiprocessing_has_started_are_known_until_they_are_waited_for():
    context = multiprocessing.get_context("spawn")
    before = spawned_pids()
    child, daemon = context.Process(target=print), context.Process(target=print, daemon=True)
    child.start()
    daemon.start()
    assert spawned_pids() - before == {child.pid}
    child.join()
    daemon.join()
    assert spawned_pids() == before


def test_who_is_waited_for_by_others_first_is_not_told_about():
    child = start("pass")
    assert child.wait() == 0
    ends = Ends()
    ends.watch([child.pid])
    time.sleep(0.1)
    assert (ends.good, ends.take_failed()) == (set(), set())


def test_a_signal_of_slurm_to_the_whole_group_leaves_who_counts_semaphores_alone():
    code = """
import multiprocessing, os, signal, time
from engine.parallel.children import quiet_resource_tracker
signal.signal(signal.SIGUSR1, lambda number, frame: None)
with quiet_resource_tracker():
    lock = multiprocessing.get_context("spawn").Lock()
    os.killpg(0, signal.SIGUSR1)
    time.sleep(0.2)
    del lock
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, start_new_session=True, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
