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


def heartbeat_of(machine, port, machines=2, restarts=0):
    flags = {"--num-gpus": 1, "--num-machines": machines, "--max-restarts": restarts}
    return Heartbeat("127.0.0.1", port, machine, flags, LIMIT)


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
    with heartbeat_of(0, store.port) as heartbeat:
        assert heartbeat.take_silent() is None  # not even there yet
        wait_until(lambda: heartbeat.hears(1))
        machine.kill()
        silent = []
        wait_until(lambda: silent.append(heartbeat.take_silent()) or silent[-1] is not None)
        assert silent[-1] == 1
        assert not heartbeat.hears(1)
        assert heartbeat.take_silent() is None
        with heartbeat_of(1, store.port) as back:
            wait_until(lambda: heartbeat.hears(1) and back.hears(0))


def test_a_machine_that_has_left_is_not_missed(store, machine):
    with heartbeat_of(0, store.port) as heartbeat:
        wait_until(lambda: heartbeat.hears(1))
        began = time.monotonic()
        machine.terminate()
        assert heartbeat.find_left(since=began) is None
        wait_until(lambda: not heartbeat.hears(1))
        assert heartbeat.take_silent() is None
        wait_until(lambda: heartbeat.find_left(since=began) == 1)
        assert heartbeat.find_left(since=time.monotonic()) is None
        with heartbeat_of(1, store.port):
            wait_until(lambda: heartbeat.find_left(since=began) is None)


def test_the_other_machines_miss_machine_0(store):
    first = heartbeat_of(0, store.port)
    with first, heartbeat_of(1, store.port) as heartbeat:
        wait_until(lambda: heartbeat.hears(0))
        assert heartbeat.take_silent() is None
    time.sleep(1.1 * LIMIT)  # nobody answers: this one no longer asks
    assert heartbeat.take_silent() == 0


def test_a_machine_agrees_with_the_first_one_on_their_flags_or_hears_of_it(store):
    with heartbeat_of(2, store.port, machines=3, restarts=1) as other:  # it is there before
        time.sleep(0.5)
        with heartbeat_of(0, store.port) as first:
            wait_until(lambda: first.has_agreed.is_set() and other.contradiction)
            wait_until(lambda: first.contradiction == other.contradiction)
        assert not other.has_agreed.is_set()
    assert other.contradiction == (
        "machines were started with --num-machines 2 --max-restarts 0 and "
        "--num-machines 3 --max-restarts 1: give all the same"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with heartbeat_of(1, int(sys.argv[1])):
        signal.pause()
