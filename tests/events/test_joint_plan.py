import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.joint_plan import JointPlan, Layout

WINDOW = 4
NOW = 13  # the window is 10 to 13
Values = dict[int, float]  # by iteration
values_of_rank = st.dictionaries(st.integers(10, 13), st.floats(-1e6, 1e6))
times_of_rank = st.dictionaries(st.integers(10, 13), st.floats(0, 1e6))


def join(*ranks: Values | list[Values], is_time: bool = False) -> list[Values]:
    """By name, the joint values of what each rank has put of one name, or of several."""
    per_rank = [rank if isinstance(rank, list) else [rank] for rank in ranks]
    puts = [
        [(place, at, value) for place, values in enumerate(names) for at, value in values.items()]
        for names in per_rank
    ]
    layouts = [
        Layout(
            np.array([p for p, _, _ in rank], int), np.array([NOW - at for _, at, _ in rank], int)
        )
        for rank in puts
    ]
    names = max(map(len, per_rank))
    plan = JointPlan(layouts, np.full(names, is_time), WINDOW)
    found: list[Values] = [{} for _ in range(names)]
    for place, replaced, (values, iterations) in plan.join(
        np.array([value for rank in puts for _, _, value in rank]), NOW
    ):
        assert replaced == len(per_rank[0][place])
        found[place] = dict(zip(iterations, values, strict=True))
    return found


def there(ranks: list[Values], iteration: int) -> list[float]:
    return [rank[iteration] for rank in ranks if iteration in rank]


@settings(deadline=None)
@given(st.lists(values_of_rank, min_size=1, max_size=5))
def test_a_mean_is_over_the_ranks_that_have_a_value(ranks):
    [joint] = join(*ranks)
    assert list(joint) == sorted({at for rank in ranks for at in rank})
    for at, mean in joint.items():
        assert mean == pytest.approx(sum(there(ranks, at)) / len(there(ranks, at)), abs=1e-6)


@settings(deadline=None)
@given(st.lists(times_of_rank, min_size=1, max_size=5))
def test_of_a_time_the_largest_counts(ranks):
    [joint] = join(*ranks, is_time=True)
    assert joint == {at: max(there(ranks, at)) for at in joint}


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.integers(1, 50))
def test_what_is_equal_on_all_ranks_comes_out_unchanged(value, size):
    assert join(*[{13: value}] * size) == [{13: value}]


@pytest.mark.parametrize("is_time", [False, True])
def test_nan_of_one_rank_is_seen_and_leaves_other_values_alone(is_time):
    [joint] = join({12: math.nan, 13: 1.0}, {12: 1.0, 13: 1.0}, is_time=is_time)
    assert math.isnan(joint[12])
    assert joint[13] == 1.0


def test_infinity_stays():
    assert join({13: math.inf}, {13: 1.0}) == [{13: math.inf}]
    assert join({13: math.inf}, {13: math.inf}) == [{13: math.inf}]
    [joint] = join({13: math.inf}, {13: -math.inf})
    assert math.isnan(joint[13])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_large_numbers_is_finite(sign):
    assert join({13: sign * 1e308}, {13: sign * 1.5e308}) == [{13: sign * 1.25e308}]
    third_has_another = [{12: 1.0}, {12: 1.0}, {}]
    ranks = [{13: sign * 1e308} | one for one in third_has_another]
    assert join(*ranks, {13: sign * 1.4e308}) == [{12: 1.0, 13: sign * 1.1e308}]


def test_names_are_kept_apart():
    ranks = [{12: 1.0}, {12: 5.0, 13: 2.0}, {}], [{}, {12: 7.0}, {12: 3.0}]
    assert join(*ranks) == [{12: 1.0}, {12: 6.0, 13: 2.0}, {12: 3.0}]


def test_values_older_than_the_window_before_the_latest_of_the_name_are_left_out():
    assert join({4: 1.0}, {6: 2.0}) == [{4: 1.0, 6: 2.0}]
    assert join({4: 1.0, 7: 3.0}, {4: 2.0}) == [{4: 1.5, 7: 3.0}]
    assert join({4: 1.0, 5: 1.0}, {8: 2.0}) == [{5: 1.0, 8: 2.0}]


def test_values_of_the_future_stay_with_their_name():
    ranks = [{14: 1.0, 16: 3.0}, {13: 5.0}], [{14: 2.0}, {13: 7.0}]
    assert join(*ranks) == [{14: 1.5, 16: 3.0}, {13: 6.0}]


def test_the_first_puts_of_an_iteration_are_joined_then_the_second_ones():
    layouts = [
        Layout(np.zeros(3, int), np.array([1, 1, 0])),
        Layout(np.zeros(4, int), np.array([1, 1, 1, 0])),
    ]
    [(_, replaced, (values, iterations))] = JointPlan(layouts, np.array([False]), WINDOW).join(
        np.array([1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0]), iteration=9
    )
    assert replaced == 3
    assert values.tolist() == [3.0, 4.0, 7.0, 5.5]
    assert iterations.tolist() == [8, 8, 8, 9]


def test_ranks_may_have_put_nothing():
    assert join({13: 1.0}, {}) == [{13: 1.0}]
    assert join({}, {}) == [{}]


def test_times_are_told_apart_by_rank_where_all_have_as_many():
    layouts = [
        Layout(np.array([0, 1, 0, 2]), np.zeros(4, int)),
        Layout(np.array([2, 0, 0]), np.zeros(3, int)),
    ]
    plan = JointPlan(layouts, np.array([True, True, True]), WINDOW)
    assert {place: index.tolist() for place, index in plan.times.items()} == {
        0: [[0, 2], [5, 6]],
        2: [[3], [4]],
    }
