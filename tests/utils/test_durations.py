import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.utils.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3h50min", 13_800),
        ("90 min", 5400),
        ("45s", 45),
        ("1d 2h", 93_600),
        ("1.5 hours", 5400),
        ("2 Days 1 minute 5 seconds", 172_865),
        ("3h50m", 13_800),
        ("02:30:00", 9000),
        ("100:00:01", 360_001),
        ("1-02:30:00", 95_400),
    ],
)
def test_the_ways_people_write_a_length_of_time(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "3", "3h50", "0s", "-3h", "3 fortnights", "12:70:00", "2:30", 90, None]
)
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=r"like '3h50min', .*; got") as refused:
        parse_duration(text)
    assert str(refused.value).endswith(repr(text))


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_units_and_clocks_agree(days, hours, minutes, seconds):
    written_out = parse_duration(f"{days}d {hours}h {minutes}min {seconds}s")
    assert written_out == parse_duration(f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}")
    assert written_out == ((days * 24 + hours) * 60 + minutes) * 60 + seconds
