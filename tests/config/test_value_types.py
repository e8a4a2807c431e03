import pytest

from engine.config.value_types import Given, Length, OneOf, Within, fit, read_text
from engine.utils.periods import Period


@pytest.mark.parametrize(
    ("value", "default", "fitted"),
    [
        (1, 0.1, 1.0),
        ("1e-3", 0.1, 0.001),
        ("7", 1, 7),
        ([1, 2], (), (1, 2)),
        ((1, 2), [], [1, 2]),
        ("(1, 2)", (), (1, 2)),
        (None, 5, None),
        ("text", None, "text"),
        (5, None, 5),
        ("5", "name", "5"),
        ("2 epoch", Period(20), "2 epoch"),
        (500, Period("2 epoch"), 500),
        (500, Length("2 epoch"), 500),
        ("0.5 epoch", Length(500), "0.5 epoch"),
        ("500", Length(20), "500"),
        ("skip", OneOf("raise", "skip"), "skip"),
        ("4", Within(1, low=1), 4),
        (1, Within(0.9, low=0, high=1), 1.0),
        (0.1, Within(1.0, above=0, high=1), 0.1),
        (1, Given(0.9), 1.0),
        ("false", Given(True), False),
        ("null", Given("./output"), "null"),
    ],
)
def test_a_value_takes_the_type_of_the_default(value, default, fitted):
    result = fit(value, default)
    assert result == fitted
    assert type(result) is type(fitted)


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        ("many", 1, "a whole number, such as 1"),
        (1.5, 1, "a whole number"),
        (True, 1, "a whole number"),
        (1, True, "true or false"),
        (True, 0.5, "a number"),
        (5, "name", "text, such as 'name'"),
        ("digits", (), r"a list, such as \[a, b\]"),
        ({"a": 1}, [], "a list"),
        ({1, 2}, None, "a number, text, a list or None"),
        (2.5, Period(20), 'a period: 500 .iterations., "2 epoch" or "10 min"'),
        (True, Period(20), "a period"),
        ("often", Period(20), "a period"),
        ("2 epcoh", Period(20), "a period"),
        (None, Period(20), "a period"),
        ("10 min", Length(20), 'a length: 500 .iterations. or "2 epoch"'),
        (1.5, Length(20), "a length"),
        ("skp", OneOf("raise", "skip"), "one of 'raise', 'skip'"),
        (None, OneOf("raise", "skip"), "one of"),
        (0, Within(1, low=1), "1 or more$"),
        (None, Within(-1, low=-1), "-1 or more$"),
        (None, Given("SGD"), "text, such as 'SGD'$"),
        (5, Given("SGD"), "text, such as 'SGD'$"),
        (None, Given(False), "true or false, such as False$"),
        (1.5, Within(1, low=1), "a whole number"),
        (1.1, Within(0.9, low=0, high=1), "0 or more, at most 1"),
        (float("nan"), Within(0.9, low=0, high=1), "0 or more, at most 1"),
        (float("inf"), Within(0.1, low=0), "0 or more, but finite$"),
        (0, Within(1.0, above=0, high=1), "a number above 0, at most 1$"),
    ],
)
def test_any_other_type_is_refused_with_what_was_expected(value, default, expected):
    with pytest.raises(TypeError, match=f"expected {expected}"):
        fit(value, default)


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("123", "name", "123"),
        ("[a]", "name", "[a]"),
        ("'two words'", "name", "two words"),
        ("None", "name", None),
        ("1e-3", Given("name"), "1e-3"),
        ("123", 1, 123),
        ("true", False, True),
    ],
)
def test_typed_text_is_read_with_the_default_in_mind(text, default, value):
    assert read_text(text, default) == value
