import io
import math
import sys
import tracemalloc
from array import array
from itertools import takewhile

import numpy as np
import pytest
import torch
from fvcore.common.history_buffer import HistoryBuffer as FvcoreHistoryBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import HistoryBuffer
from engine.events.history import Column

VALUES = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
ITERATIONS = st.none() | st.integers(0, 60)  # often equal, often out of order
PUTS = st.lists(st.tuples(VALUES, ITERATIONS), min_size=1, max_size=120)
LENGTHS = st.integers(1, 60)


def filled(values, max_length=1000) -> HistoryBuffer:
    buffer = HistoryBuffer(max_length)
    for iteration, value in enumerate(values):
        buffer.update(value, iteration)
    return buffer


def column(values: list[float], iterations: list[int]) -> Column:
    return Column(array("d", values), array("q", iterations))


def same(ours: float, expected: float) -> bool:
    return ours == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


def median(values) -> float:
    with np.errstate(all="ignore"):
        return float(np.median(values))


@settings(max_examples=40, deadline=None)
@given(LENGTHS, PUTS, st.integers(1, 100))
def test_it_agrees_with_a_plain_list_after_every_update(max_length, puts, window):
    buffer, everything = HistoryBuffer(max_length), []
    for count, (value, iteration) in enumerate(puts):
        buffer.update(value, iteration)
        everything.append((value, count if iteration is None else iteration))
        kept = [value for value, _ in everything[-max_length:]]
        assert str(buffer.latest()) == str(value)
        assert buffer.latest_iteration == everything[-1][1]
        assert buffer.count == count + 1
        assert str(buffer.values()) == str(everything[-max_length:])
        assert same(buffer.median(window), median(kept[-window:]))
        assert same(buffer.avg(window), sum(kept[-window:]) / len(kept[-window:]))
    assert same(buffer.global_avg(), sum(value for value, _ in everything) / len(everything))


@settings(max_examples=40, deadline=None)
@given(LENGTHS, PUTS, st.lists(st.integers(0, 119), max_size=5))
def test_the_average_of_all_does_not_depend_on_when_it_is_asked_for(max_length, puts, asked_at):
    asked, silent = HistoryBuffer(max_length), HistoryBuffer(max_length)
    for count, (value, _) in enumerate(puts):
        asked.update(value)
        silent.update(value)
        if count in asked_at:
            asked.global_avg()
    assert same(asked.global_avg(), silent.global_avg())


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=120), st.integers(1, 100))
def test_it_answers_as_fvcores_buffer_does(max_length, values, window):
    ours, theirs = HistoryBuffer(max_length), FvcoreHistoryBuffer(max_length)
    for value in values:
        ours.update(value)
        theirs.update(value)
    assert ours.latest() == theirs.latest()
    assert same(ours.median(window), theirs.median(window))
    assert same(ours.avg(window), theirs.avg(window))
    assert same(ours.global_avg(), theirs.global_avg())
    assert ours.values() == theirs.values()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(VALUES, st.integers(0, 6)), min_size=1), st.integers(1, 5))
def test_a_reading_is_the_median_over_so_many_iterations(puts, window):
    """Going back until a value is older, also where iterations are equal or out of order."""
    buffer = HistoryBuffer()
    for value, at in puts:
        buffer.update(value, at)
        backwards = takewhile(lambda pair, at=at: pair[1] > at - window, reversed(buffer.values()))
        value, iteration, count = buffer.reading(window)
        assert same(value, median([value for value, _ in backwards]))
        assert (iteration, count) == (at, buffer.count)


def test_a_reading_counts_iterations_not_values():
    buffer = HistoryBuffer()
    for iteration in range(0, 100, 10):
        buffer.update(iteration, iteration)
    assert buffer.reading(20) == (85.0, 90, 10)
    for value in (1.0, 2.0, 300.0):
        buffer.update(value, 200)
    assert buffer.reading(20) == buffer.reading(1) == (2.0, 200, 13)
    assert buffer.reading(0) == (300.0, 200, 13)


def test_a_value_out_of_order_ends_the_window():
    buffer = HistoryBuffer()
    for value, iteration in [(1.0, 2), (50.0, 5), (60.0, 1), (70.0, 5)]:
        buffer.update(value, iteration)
    assert buffer.recent(3) == [70.0]
    assert buffer.reading(3) == (70.0, 5, 4)


def test_extending_is_updating_with_each():
    one_by_one, at_once = HistoryBuffer(10), HistoryBuffer(10)
    for iteration in range(100):
        one_by_one.update(iteration * 0.5, iteration)
    at_once.extend([iteration * 0.5 for iteration in range(100)], list(range(100)))
    assert at_once.values() == one_by_one.values()
    assert at_once.count == 100
    assert at_once.global_avg() == one_by_one.global_avg()


def test_a_storage_can_hand_over_values_when_they_are_read():
    waiting = [1.0, 2.0]
    buffer = HistoryBuffer(catch_up=lambda: buffer.extend([waiting.pop(0)], [0]))
    assert buffer.latest() == 1.0
    assert buffer.values() == [(1.0, 0), (2.0, 0)]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, PUTS, PUTS)
def test_a_buffer_loaded_from_a_checkpoint_goes_on_as_the_saved_one(max_length, before, after):
    saved, loaded = HistoryBuffer(max_length), HistoryBuffer(max_length)
    for value, iteration in before:
        saved.update(value, iteration)
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for value, iteration in after:
        saved.update(value, iteration)
        loaded.update(value, iteration)
    assert str(loaded.values()) == str(saved.values())
    assert loaded.count == saved.count == len(before) + len(after)
    assert same(loaded.global_avg(), saved.global_avg())
    assert str(loaded.reading(5)) == str(saved.reading(5))


def test_a_state_does_not_change_with_the_buffer_it_was_taken_from():
    buffer = filled([1.0, 2.0])
    state = buffer.state_dict()
    buffer.update(3.0)
    assert state["values"] == [1.0, 2.0]


def test_loading_replaces_what_was_there():
    buffer = filled([7.0] * 50)
    buffer.reading(20)
    buffer.load_state_dict(filled([1.0] * 50).state_dict())
    assert (buffer.reading(20), buffer.global_avg()) == ((1.0, 49, 50), 1.0)


def test_numbers_that_come_out_are_plain_floats():
    buffer = filled([np.float64(1), torch.tensor(2.0), 4])
    answers = [buffer.latest(), buffer.median(3), buffer.avg(3), buffer.global_avg()]
    assert [type(answer) for answer in answers] == [float] * 4
    assert buffer.values() == [(1.0, 0), (2.0, 1), (4.0, 2)]


def test_a_window_is_never_longer_than_what_is_kept():
    buffer = filled(range(10), max_length=3)
    assert buffer.values() == [(7.0, 7), (8.0, 8), (9.0, 9)]
    assert (buffer.median(100), buffer.avg(100), buffer.global_avg()) == (8.0, 8.0, 4.5)


def test_a_window_of_even_length_has_the_mean_of_its_middle_as_median():
    assert filled([5.0, 1.0, 2.0, 9.0]).median(4) == 3.5
    assert filled([5.0, 1.0, 2.0, 9.0]).median(2) == 5.5


def test_one_nan_in_the_window_makes_the_median_nan_and_leaves_it_with_the_window():
    buffer = filled([1.0, math.nan, 3.0, 4.0])
    assert math.isnan(buffer.median(3))
    assert buffer.median(2) == 3.5
    assert filled([math.inf, -math.inf, 1.0]).median(3) == 1.0


def test_memory_is_bounded_by_the_length():
    buffer = HistoryBuffer(1000)
    tracemalloc.start()
    try:
        for i in range(20_000):
            buffer.update(i * 0.5)
        assert tracemalloc.get_traced_memory()[0] < 200_000  # all values would be 1.3 MB
    finally:
        tracemalloc.stop()


def test_the_last_values_can_be_replaced_in_all_that_is_told_of_them():
    buffer = filled([1.0, 2.0, 3.0, 4.0])
    assert buffer.global_avg() == 2.5
    buffer.replace_last(2, column([5.0, 6.0, 7.0], [2, 3, 4]))
    assert buffer.values() == [(1.0, 0), (2.0, 1), (5.0, 2), (6.0, 3), (7.0, 4)]
    assert (buffer.count, buffer.global_avg(), buffer.latest()) == (5, 4.2, 7.0)
    buffer.replace_last(0, column([8.0], [5]))
    assert (buffer.count, buffer.latest()) == (6, 8.0)


@pytest.mark.parametrize("max_length", [0, -1])
def test_a_buffer_that_could_hold_nothing_is_refused(max_length):
    with pytest.raises(ValueError, match=f"max_length must be at least 1, got {max_length}"):
        HistoryBuffer(max_length)


def test_a_window_longer_than_the_history_is_the_history():
    buffer = filled([3.0, 1.0, 2.0])
    assert buffer.recent(sys.maxsize - 1) == [3.0, 1.0, 2.0]
    assert buffer.reading(10**12) == (2.0, 2, 3)


def test_a_window_longer_than_what_is_kept_is_what_is_kept():
    buffer = filled(range(110), max_length=100)  # it holds some more, until it trims them
    assert buffer.recent(105) == buffer.recent(1000) == list(range(10, 110))
