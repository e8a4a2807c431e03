"""Heartbeat. This file is also the program of a machine: see `machine`."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from engine.parallel.heartbeat import Heartbeat

LIMIT = 1.0


@pytest.fixture
def store():
    """What machine 0 has from its rendezvous."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True, wait_for_workers=False)


@pytest.fixture
def machine(store):
    """Machine 1 in a process of its own; it leaves at SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(store.port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    yield process
    process.kill()
    process.wait()


def wait_until(condition) -> None:
    while not condition():  # pytest's timeout ends it
        time.sleep(0.02)


def test_a_machine_that_was_killed_is_found_silent_once(store, machine):
    with Heartbeat("127.0.0.1", store.port, 0, 2, LIMIT) as heartbeat:
        assert heartbeat.take_silent() is None  # not even there yet
        wait_until(lambda: heartbeat.hears(1))
        machine.kill()
        silent = []
        wait_until(lambda: silent.append(heartbeat.take_silent()) or silent[-1] is not None)
        assert silent[-1] == 1
        assert not heartbeat.hears(1)
        assert heartbeat.take_silent() is None
        with Heartbeat("127.0.0.1", store.port, 1, 2, LIMIT) as back:
            wait_until(lambda: heartbeat.hears(1) and back.hears(0))


def test_a_machine_that_has_left_is_not_missed(store, machine):
    with Heartbeat("127.0.0.1", store.port, 0, 2, LIMIT) as heartbeat:
        wait_until(lambda: heartbeat.hears(1))
        began = time.monotonic()
        machine.terminate()
        assert heartbeat.find_left(since=began) is None
        wait_until(lambda: not heartbeat.hears(1))
        assert heartbeat.take_silent() is None
        wait_until(lambda: heartbeat.find_left(since=began) == 1)
        assert heartbeat.find_left(since=time.monotonic()) is None
        with Heartbeat("127.0.0.1", store.port, 1, 2, LIMIT):
            wait_until(lambda: heartbeat.find_left(since=began) is None)


def test_the_other_machines_miss_machine_0(store):
    first = Heartbeat("127.0.0.1", store.port, 0, 2, LIMIT)
    with first, Heartbeat("127.0.0.1", store.port, 1, 2, LIMIT) as heartbeat:
        wait_until(lambda: heartbeat.hears(0))
        assert heartbeat.take_silent() is None
    time.sleep(1.1 * LIMIT)  # nobody answers: this one no longer asks
    assert heartbeat.take_silent() == 0


def test_a_machine_agrees_with_the_first_one_on_their_number_or_hears_of_it(store):
    with Heartbeat("127.0.0.1", store.port, 2, 3, LIMIT) as other:  # it is there before
        time.sleep(0.5)
        with Heartbeat("127.0.0.1", store.port, 0, 2, LIMIT) as first:
            wait_until(lambda: first.has_agreed.is_set() and other.contradiction)
            wait_until(lambda: first.contradiction == other.contradiction)
        assert not other.has_agreed.is_set()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with Heartbeat("127.0.0.1", int(sys.argv[1]), 1, 2, LIMIT):
        signal.pause()
