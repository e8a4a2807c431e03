import logging

import numpy as np
import pytest

from engine.parallel.slow_ranks import SlowRanks

HOSTS = ["first", "second", "third"]


def told(caplog: pytest.LogCaptureFixture, *milliseconds: float, windows: int = 1) -> list[str]:
    """What is said of ranks that took so long in each iteration of so many windows."""
    caplog.set_level(logging.WARNING)
    slow_ranks = SlowRanks(window=20)
    slow_ranks.hosts = HOSTS
    seconds = np.array(milliseconds)[:, None] / 1e3
    for _ in range(windows):
        slow_ranks.note("data_time", seconds.repeat(13, axis=1))  # a write before it is full
        slow_ranks.note("data_time", seconds.repeat(7, axis=1))
    return [record.message for record in caplog.records]


def test_the_slow_rank_is_named_with_its_machine(caplog):
    assert told(caplog, 10, 30, 11) == [
        "Rank 1 (on second) is slow: its data_time is 30.0 ms on average, that of the median rank "
        "11.0 ms; all ranks wait for it"
    ]


@pytest.mark.parametrize("milliseconds", [(10, 14, 11), (0.1, 4, 0.1), (900, 1000, 700)])
def test_what_is_not_much_slower_is_not_named(caplog, milliseconds):
    assert told(caplog, *milliseconds) == []


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_times_that_are_no_numbers_are_passed_over(caplog, odd):
    """No warning of NumPy's either, which the tests make an error."""
    assert told(caplog, 10, odd, 11) == []
    assert told(caplog, np.inf, odd, -np.inf) == []


def test_one_that_waits_for_the_slowest_is_not_named(caplog):
    assert [message[:6] for message in told(caplog, 20, 60, 1)] == ["Rank 1"]


def test_of_two_ranks_the_slower_is_named(caplog):
    assert [message[:6] for message in told(caplog, 30, 10)] == ["Rank 0"]


def test_a_rank_that_stays_slow_is_named_ever_more_rarely(caplog):
    assert len(told(caplog, 1, 30, 1, windows=100)) == 7  # in windows 1, 2, 4, … 64


@pytest.mark.parametrize("window", [1, 20])
def test_one_long_time_is_no_slow_rank(caplog, window):
    slow_ranks = SlowRanks(window)
    slow_ranks.hosts = HOSTS
    for seconds in (0.001,) * 15 + (5.0,) + (0.001,) * 4:  # with a write after each step
        slow_ranks.note("busy_time", np.array([[seconds], [0.001]]))
    assert not caplog.records


def test_a_short_burst_is_no_slow_rank(caplog):
    slow_ranks = SlowRanks(window=20)
    slow_ranks.hosts = HOSTS
    slow_ranks.note("time", np.array([[0.01] * 3, [0.04] * 3]))
    slow_ranks.note("time", np.full((2, 17), 0.01))
    assert not caplog.records
