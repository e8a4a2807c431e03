"""What type a value must have: that of the key's default, after the conversions people expect."""

import math
from dataclasses import dataclass
from typing import Any

from engine.config.yaml_text import is_plain, parse_literal, parse_value
from engine.utils.lengths import parse_length
from engine.utils.periods import Period


@dataclass(frozen=True)
class Length:
    """Marks a default as a length of training: `_C.X = Length(1000)` accepts 500 and "2 epoch".

    `engine.utils.periods.Period` marks a period the same way.
    """

    spec: int | str


class OneOf:
    """Marks a default as one of a few values, of which it is the first: `OneOf("ddp", "fsdp")`."""

    def __init__(self, *values: str) -> None:
        self.values = values
        self.spec = values[0]


@dataclass(frozen=True)
class Within:
    """Marks a default as a finite number with bounds: `Within(1, low=1)` accepts 1, 2, 3, …

    `above` is a lower bound that does not itself belong.
    """

    spec: float
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf


@dataclass(frozen=True)
class Given:
    """Marks a default that something must stand for: `Given("./output")` accepts text, not None."""

    spec: Any


NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
MARKS = (Period, Length, OneOf, Within, Given)  # each has the default itself as its `spec`


def fit(value: Any, default: Any) -> Any:
    """`value` as the type of `default`, or a TypeError that says what was expected.

    A default of None accepts any plain value, and None is accepted but where a mark says more. An
    int is a float, a list a tuple; text is read as the value it spells ("1e-3", "(1, 2)") where no
    text belongs.
    """
    if isinstance(default, Period):
        return _fit_period(value)
    if isinstance(default, Length):
        return _fit_length(value)
    if isinstance(default, OneOf):
        return _fit_one(value, default)
    if isinstance(default, Within):
        return _fit_bounds(fit(value, default.spec), default)
    if isinstance(default, Given):
        if (found := fit(value, default.spec)) is None:
            raise TypeError(f"expected {_describe(default.spec)}")
        return found
    if isinstance(value, str) and default is not None and not isinstance(default, str):
        value = parse_value(value)
    if not is_plain(value) and not isinstance(value, dict):
        raise TypeError("expected a number, text, a list or None")
    if value is None or default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, list | tuple) and isinstance(value, list | tuple):
        return type(default)(value)
    raise TypeError(f"expected {_describe(default)}")


def read_text(text: str, default: Any) -> Any:
    """What text typed on a command line means for a key with this default."""
    default = default.spec if isinstance(default, OneOf | Given) else default
    if not isinstance(default, str):
        return parse_value(text)
    value = parse_literal(text)  # 'None' and quoted text; anything else is text as it stands
    return value if value is None or isinstance(value, str) else text


def _fit_period(value: Any) -> Any:
    try:
        Period(value)
    except ValueError:
        raise TypeError(
            'expected a period: 500 (iterations), "2 epoch" or "10 min", '
            'or one that changes: "1000; 100 from 9000"'
        ) from None
    return value


def _fit_length(value: Any) -> Any:
    if parse_length(value) is not None:
        return value
    raise TypeError('expected a length: 500 (iterations) or "2 epoch"')


def _fit_one(value: Any, default: OneOf) -> Any:
    if value in default.values:
        return value
    raise TypeError(f"expected one of {', '.join(map(repr, default.values))}")


def _fit_bounds(value: Any, default: Within) -> Any:
    low, high, above = default.low, default.high, default.above
    if value is not None and low <= value <= high and above < value < math.inf:
        return value
    least = "a number" if low == -math.inf else f"{low} or more"
    if above > -math.inf:
        least = f"a number above {above}"
    most = "" if high == math.inf else f", at most {high}"
    raise TypeError(f"expected {least}{most}{', but finite' if value == math.inf else ''}")


def _describe(default: Any) -> str:
    if isinstance(default, list | tuple):
        return "a list, such as [a, b]"
    return f"{NAMES[type(default)]}, such as {default!r}"
