import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hooks.best import Best


def test_a_sign_or_the_mode_says_what_is_better():
    for higher in (Best("+accuracy"), Best("accuracy"), Best("+accuracy", "max")):
        assert [higher.update({"accuracy": a}, i) for i, a in enumerate([0.5, 0.4, 0.6])] == [
            True,
            False,
            True,
        ]
        assert (higher.value, higher.iteration) == (0.6, 2)
    for lower in (Best("-test/loss"), Best("test/loss", "min")):
        assert [lower.update({"test/loss": a}, i) for i, a in enumerate([0.5, 0.6, 0.4])] == [
            True,
            False,
            True,
        ]


@pytest.mark.parametrize("mode", ["max", "min"])
@given(values=st.lists(st.floats(), min_size=1))
def test_the_best_is_the_first_extreme_of_the_finite_values(mode, values):
    best = Best("a", mode)
    updates = [best.update({"a": value}, i) for i, value in enumerate(values)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert (best.value, best.iteration) == (None, None)
    else:
        expected = max(finite) if mode == "max" else min(finite)
        assert best.value == expected
        assert best.iteration == values.index(expected)
        assert [i for i, better in enumerate(updates) if better][-1] == best.iteration


def test_a_gain_of_min_delta_is_not_enough():
    best = Best("+a", min_delta=0.5)
    assert best.update({"a": -1.0}, 0)
    assert not best.update({"a": -0.5}, 1)
    assert best.update({"a": -0.25}, 2)
    best = Best("-a", min_delta=0.5)
    assert best.update({"a": 0.0}, 0)
    assert not best.update({"a": -0.5}, 1)


def test_a_missing_metric_is_not_best_and_the_close_names_are_logged(log):
    best = Best("+digits/acuracy")
    assert not best.update({"digits/accuracy": 0.9, "digits/loss": 0.1}, 19)
    assert "'digits/acuracy' at iteration 19; did you mean digits/accuracy?" in log.text
    log.clear()
    assert not Best("+accuracy").update({"digits_test/top1": 0.9}, 19)
    assert "there are: digits_test/top1" in log.text
    assert not Best("+accuracy").update({}, 19)


def test_the_end_of_a_name_is_enough_where_only_one_ends_so(log):
    best = Best("+accuracy")
    assert best.update({"digits/accuracy": 0.8, "digits/top5_accuracy": 0.9}, 9)
    assert best.value == 0.8
    assert best.update({"accuracy": 0.9, "digits/accuracy": 0.1}, 19)
    assert best.value == 0.9
    for iteration in (29, 39):
        assert not best.update({"digits/accuracy": 1.0, "letters/accuracy": 1.0}, iteration)
    assert log.text.count("which one is meant: digits/accuracy, letters/accuracy?") == 1


def test_the_best_survives_a_resume():
    best = Best("-loss")
    best.update({"loss": -2.0}, 7)
    resumed = Best("loss", "min")
    resumed.load_state_dict(best.state_dict())
    assert (resumed.value, resumed.iteration) == (-2.0, 7)
    assert not resumed.update({"loss": -1.0}, 8)


def test_the_best_of_another_metric_is_not_taken_over(log):
    best = Best("-loss")
    best.update({"loss": 0.1}, 7)
    other = Best("+loss")
    other.load_state_dict(best.state_dict())
    assert other.value is None
    assert "the min of loss, not the max of loss" in log.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("+a", "min"), "'\\+a' says 'max' and mode says 'min'"),
        (("a", "higher"), "'max' or 'min', got 'higher'"),
        (("-",), "name of a metric"),
        (("a", None, -0.1), "min_delta must be 0 or more"),
        (("a", None, math.nan), "min_delta must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Best(*arguments)
