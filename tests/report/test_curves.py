import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import make_curve, thin

values_with_gaps = st.lists(
    st.floats(allow_nan=False, allow_infinity=False, width=32) | st.just(math.nan),
    min_size=1,
    max_size=80,
)


@given(values_with_gaps, st.integers(1, 6))
def test_thinning_keeps_ends_extremes_order_and_gaps(listed, buckets):
    values = np.array(listed)
    places = thin(values, buckets)
    assert (np.diff(places) > 0).all()
    assert len(places) <= 8 * buckets
    width = math.ceil(len(values) / buckets)
    for start in range(0, len(values), width):
        bucket = values[start : start + width]
        kept = places[(places >= start) & (places < start + width)]
        assert {start, start + len(bucket) - 1} <= set(kept)
        if not np.isnan(bucket).all():
            assert np.nanmin(values[kept]) == np.nanmin(bucket)
            assert np.nanmax(values[kept]) == np.nanmax(bucket)
    for before, after in pairwise(places):
        if not np.isnan(values[[before, after]]).any():  # a line is drawn between these two
            assert not np.isnan(values[before:after]).any()


def test_a_short_curve_is_left_as_it_is():
    assert thin(np.zeros(40), 10).tolist() == list(range(40))


def test_a_spike_among_very_many_values_stays():
    values = np.zeros(100_000)
    values[12_345] = 7.0
    curve = make_curve("loss", np.arange(100_000), values, 250)
    assert len(curve.points) <= 1000
    assert (12_345, 7.0) in curve.points
    assert curve.best == (0, 0.0)
    assert curve.last == (99_999, 0.0)


def test_means_of_buckets_are_there_to_be_smoothed():
    curve = make_curve("a", np.arange(100), np.array([*range(90), *[math.nan] * 10]), 10)
    assert curve.means == [*((10 * i + 5, 10 * i + 4.5) for i in range(9)), (95, None)]
    assert make_curve("a", np.arange(5), np.arange(5.0), 10).means == []


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("total_loss", 1.0),
        ("eval/top1_Error", 1.0),
        ("data_time", 1.0),
        ("perplexity", 1.0),
        ("accuracy", 3.0),
    ],
)
def test_the_best_is_the_lowest_or_the_highest_as_the_name_says(name, best):
    values = np.array([2.0, 1.0, math.nan, 3.0])
    assert make_curve(name, np.arange(4), values, 10).best[1] == best


@pytest.mark.parametrize("name", ["lr", "eta_seconds"])
def test_some_metrics_have_no_best_value(name):
    assert make_curve(name, np.arange(2), np.arange(2.0), 10).best is None


def test_a_metric_that_was_never_finite_has_no_best_value():
    curve = make_curve("loss", np.array([4, 9]), np.array([math.nan] * 2), 10)
    assert curve.points == [(4, None), (9, None)]
    assert curve.best == curve.last == (9, None)
