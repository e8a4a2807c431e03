"""What is done about processes that wait in vain; with torch's agent: tests/test_elastic.py."""

import multiprocessing
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engine.parallel.children import PATIENCE
from engine.parallel.heartbeat import Heartbeat
from engine.parallel.job import Exit
from engine.parallel.network import FlagError
from engine.parallel.watch import LaunchError, Watch


@pytest.fixture
def sleepers(job):
    """Two processes that have begun and sleep."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=time.sleep, args=(600,)) for _ in range(2)]
    for local_rank, process in enumerate(processes):
        process.start()
        job.started(local_rank).write_text(str(process.pid))
    yield processes
    for process in processes:
        process.kill()
        process.join()


def watch(job, agent=None):
    heartbeat = Heartbeat(job.host, job.port, job.machine_rank, job.flags, 60.0)
    return Watch(job, agent or Future(), heartbeat, strangers=set())


def test_results_come_in_the_order_of_the_ranks(job):
    agent = Future()
    agent.set_result({1: "one", 0: "zero"})
    assert watch(job, agent).wait() == ["zero", "one"]


def test_an_error_of_the_agent_is_passed_on(job):
    agent = Future()
    agent.set_exception(ZeroDivisionError("of the agent"))
    with pytest.raises(ZeroDivisionError, match="of the agent"):
        watch(job, agent).wait()


@pytest.mark.slow
def test_who_waits_for_the_others_of_a_run_that_stops_is_ended(job, sleepers):
    job.stop_with(143)
    assert watch(job).wait() == [Exit(143)]
    assert [process.exitcode for process in sleepers] == [-signal.SIGKILL] * 2


@pytest.mark.slow
def test_who_has_not_begun_is_ended_too_when_machines_contradict_each_other(job, sleepers):
    job.started(1).unlink()
    watching = watch(job)
    watching.heartbeat.contradiction = "machines were started with other flags"
    with pytest.raises(FlagError, match="machines were started with other flags"):
        watching.wait()
    assert [process.exitcode for process in sleepers] == [-signal.SIGKILL] * 2
    assert job.stop_code == 1  # for those that the agent starts yet


@pytest.mark.slow
def test_peers_of_a_rank_that_was_killed_are_ended_before_their_patience_is(job, sleepers):
    agent = Future()
    with ThreadPoolExecutor() as pool:
        end = pool.submit(watch(job, agent).wait)
        time.sleep(1)  # they have run side by side
        sleepers[0].kill()
        sleepers[1].join(PATIENCE - 1)
        agent.set_result({0: None, 1: None})  # as torch's, which sees that they are gone
        assert end.result() == [None, None]
    assert sleepers[1].exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_an_agent_that_waits_for_a_rank_killed_at_its_very_end_is_left(job, sleepers):
    """torch's does so now and then: it waits for the process to hear that all are done."""
    for local_rank in (0, 1):
        job.returned(local_rank).touch()
    with ThreadPoolExecutor() as pool:
        end = pool.submit(watch(job).wait)
        time.sleep(1)
        for process in sleepers:
            process.kill()
        with pytest.raises(LaunchError, match="was killed when all had come to the end"):
            end.result(timeout=30)


@pytest.mark.slow
def test_a_rank_that_left_without_a_word_is_named(job, sleepers):
    job.left(1).touch()
    sleepers[0].kill()
    sleepers[0].join()
    with pytest.raises(LaunchError, match="Rank 3 ended with exit code 0 in the middle"):
        watch(job).wait()
