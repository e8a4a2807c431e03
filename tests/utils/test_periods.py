import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.utils import periods
from engine.utils.periods import Period, is_due, read_period


class Clock:
    """Counts iterations, and epochs of a length that need not be a whole number of them."""

    def __init__(self, epoch_length: float | None = None) -> None:
        self.iter = 0
        self.epoch_length = epoch_length

    def epoch_of(self, iteration: int) -> int | None:
        return None if self.epoch_length is None else int(iteration // self.epoch_length)


def due(period: Period, clock: Clock, iterations: int) -> list[int]:
    """The iterations that a period ends with."""
    found = []
    for clock.iter in range(iterations):
        if period.is_due(clock):
            found.append(clock.iter)
    return found


@pytest.mark.parametrize("spec", [5, "5", "5 it", "5iter", " 5 Iterations "])
def test_a_number_counts_iterations(spec):
    assert due(Period(spec), Clock(), 17) == [4, 9, 14]


@pytest.mark.parametrize("spec", ["2 epoch", "2epochs", "2 ep"])
def test_epochs_are_counted_from_the_beginning_of_training(spec):
    assert due(Period(spec), Clock(epoch_length=3), 20) == [5, 11, 17]


def test_an_epoch_need_not_be_a_whole_number_of_iterations():
    assert due(Period("1 epoch"), Clock(epoch_length=2.5), 10) == [2, 4, 7, 9]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 200))
def test_epochs_of_a_whole_length_are_so_many_iterations(epochs, length, iterations):
    by_epoch = due(Period(f"{epochs} epoch"), Clock(length), iterations)
    assert by_epoch == due(Period(epochs * length), Clock(), iterations)


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [("90 s", 90), ("90 sec", 90), ("10 min", 600), ("10 mins", 600), ("1h30min", 5400)],
)
def test_time_is_counted_from_the_last_time_it_was_due(monkeypatch, spec, seconds):
    now = 0.0
    monkeypatch.setattr(periods, "monotonic", lambda: now)
    period, clock = Period(spec), Clock()
    seen = []
    # It begins with the first question, however long all took to build.
    for after in (0, seconds - 1, seconds + 7, 2 * seconds, 2 * seconds + 7):
        now = 1000.0 + after
        seen.append(period.is_due(clock))
    assert seen == [False, False, True, False, True]


@pytest.mark.parametrize("spec", [0, -1, "0", "0 epoch", "0 s"])
def test_zero_is_never(spec):
    assert due(Period(spec), Clock(epoch_length=2), 20) == []


@pytest.mark.parametrize(
    "spec", ["", "often", "2 parsec", "1.5", "0.5 epoch", "-3", "5 sss", 2.5, None, True, [5]]
)
def test_what_is_no_period_is_refused_with_examples(spec):
    with pytest.raises(ValueError, match=r"'2 epoch', '10 min', .* got ") as caught:
        Period(spec)
    assert repr(spec) in str(caught.value)


def test_epochs_of_unknown_length_are_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match=r"'1 epoch' needs the length of an epoch.* iterations"):
        Period("1 epoch").is_due(Clock())


def test_a_period_is_made_from_another_and_shows_what_it_was_made_from():
    assert repr(Period(Period("10 min"))) == "Period('10 min')"


@pytest.mark.parametrize(("spec", "kept"), [(5, 5), ("5 it", 5), (0, 0), (-1, 0), (Period("5"), 5)])
def test_a_period_of_iterations_is_kept_as_a_number(spec, kept):
    period, clock = read_period(spec), Clock()
    assert (period, type(period)) == (kept, int)
    found = []
    for clock.iter in range(17):
        if is_due(period, clock):
            found.append(clock.iter)
    assert found == due(Period(spec), Clock(), 17)


def test_other_periods_are_objects_of_the_kind_that_is_asked_for():
    class Own(Period):
        pass

    period, clock = read_period("2 epoch", Own), Clock(epoch_length=3)
    assert type(period) is Own
    clock.iter = 5
    assert is_due(period, clock)
    clock.iter = 6
    assert not is_due(period, clock)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("10; 5 from 20; 2 from 30", [9, 19, 24, 29, 31, 33, 35, 37, 39]),
        ("0; 10 from 15", [19, 29, 39]),
        ("10 ; 0 from 2 epoch", [9, 19]),
        ("1 epoch; 5 iter from 3 epoch", [11, 23, 35, 39]),
    ],
)
def test_a_period_may_change_in_the_course_of_training(spec, expected):
    period = read_period(spec)
    clock = Clock(epoch_length=12)
    assert not period.is_never
    assert due(period, clock, 40) == expected


@pytest.mark.parametrize("spec", ["10; 5", "10; 5 from", "10; 5 from 1.5 epoch", "10; from 5", ";"])
def test_a_change_without_a_place_is_refused(spec):
    with pytest.raises(ValueError, match="a period"):
        Period(spec)
