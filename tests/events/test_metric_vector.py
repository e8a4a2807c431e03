import math
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.history import Column
from engine.events.metric_vector import MetricVector, Reduced, fill_rows

WINDOW = range(10, 14)
put = st.dictionaries(st.sampled_from(WINDOW), st.floats(-1e6, 1e6), min_size=1)
ranks_of_puts = st.lists(put, min_size=1, max_size=5)


def column(puts: dict[int, float]) -> Column:
    return Column(array("d", puts.values()), array("q", puts))


def reduce(*ranks: dict[str, dict[int, float]], times: tuple[str, ...] = ()) -> Reduced:
    """What rank 0 learns of the values by name and iteration that each rank has put."""
    means = sorted({name for puts in ranks for name in puts} - {*times})
    size, slots = len(ranks), len(WINDOW) + 1
    vectors = [MetricVector(means, times, slots, rank, size) for rank in range(size)]
    packed = [
        vector.pack({name: column(v) for name, v in puts.items()}, WINDOW, header=7.0)
        for vector, puts in zip(vectors, ranks, strict=True)
    ]
    assert sum(one[0] for one in packed) == 7.0 * size
    return vectors[0].unpack(sum(packed), packed[0])


@settings(deadline=None)
@given(ranks_of_puts)
def test_a_mean_is_over_the_ranks_that_have_a_value(ranks):
    reduced = reduce(*({"loss": puts} for puts in ranks))
    for slot, iteration in enumerate(WINDOW, start=1):
        there = [puts[iteration] for puts in ranks if iteration in puts]
        assert reduced.counts[0, slot] == len(there)
        if there:
            assert reduced.values[0, slot] == pytest.approx(sum(there) / len(there), abs=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(WINDOW), st.floats(0, 1e6), min_size=1), min_size=1)
)
def test_of_a_time_the_largest_counts(ranks):
    reduced = reduce(*({"time": puts} for puts in ranks), times=("time",))
    for slot, iteration in enumerate(WINDOW, start=1):
        column = [puts.get(iteration, 0.0) for puts in ranks]
        assert reduced.values[0, slot] == max(column)
        assert reduced.seconds[0, :, slot].tolist() == column


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.integers(1, 50))
def test_what_is_equal_on_all_ranks_comes_out_unchanged(value, size):
    assert reduce(*[{"accuracy": {13: value}}] * size).values[0, -1] == value


@pytest.mark.parametrize("times", [(), ("metric",)])
def test_nan_of_one_rank_is_seen_and_leaves_other_values_alone(times):
    reduced = reduce(
        {"metric": {12: math.nan, 13: 1.0}}, {"metric": {12: 1.0, 13: 1.0}}, times=times
    )
    assert np.isnan(reduced.values[0]).tolist() == [False, False, False, True, False]


def test_infinity_stays():
    assert reduce({"loss": {13: math.inf}}, {"loss": {13: 1.0}}).values[0, -1] == math.inf
    assert reduce({"loss": {13: math.inf}}, {"loss": {13: math.inf}}).values[0, -1] == math.inf


def test_values_from_before_the_window_are_told_by_the_last_of_them():
    reduced = reduce({"rare": {2: 8.0, 4: 1.0}}, {"rare": {6: 2.0}})
    assert (reduced.values[0, 0], reduced.counts[0].tolist()) == (1.5, [2, 0, 0, 0, 0])
    assert reduced.last[0] == 4 + 6


def test_of_several_values_in_an_iteration_a_rank_gives_the_mean():
    column = Column(array("d", [1.0, 2.0, 6.0]), array("q", [11, 13, 13]))
    assert fill_rows([column], WINDOW).tolist() == [[0, 0, 1.0, 0, 4.0, 0, 0, 1, 0, 1, 0]]


def test_names_with_a_value_in_each_iteration_are_filled_in_as_others_are():
    puts = [{13: 4.0}, {12: 1.0, 13: 2.0}, {12: 5.0}, {11: 7.0, 12: 8.0, 13: 9.0}, {13: 3.0}]
    rows = fill_rows([None, *map(column, puts)], WINDOW).tolist()
    assert rows[0] == [0.0] * 11
    for row, put in zip(rows[1:], puts, strict=True):
        assert row[:5] == [0.0, *(put.get(iteration, 0.0) for iteration in WINDOW)]
        assert row[5:] == [0.0, *(float(iteration in put) for iteration in WINDOW), 0.0]


def test_without_names_there_is_the_header_alone():
    reduced = reduce({}, {})
    assert reduced.values.shape == (0, 5)
