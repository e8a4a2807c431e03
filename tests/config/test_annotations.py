from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from engine.config.annotations import fit_annotation


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (3, int),
        (3, float),
        ("2 epoch", int | str),
        (None, Optional[int]),  # noqa: UP045 - as older code writes it
        ("max", Literal["max", "min"] | None),
        (["SIGTERM"], Sequence[str]),
        ([[1, 2], [3]], list[list[int]]),
        ({"a": 1}, dict[str, int]),
        (len, Callable[[Any], int] | None),
        ("folder", Path),  # a class may make one of text
        ("anything", Any),
        ("anything", "a name that only type checkers know"),
    ],
)
def test_what_an_annotation_names_fits(value, annotation):
    assert fit_annotation(value, annotation) is value


def test_a_power_of_ten_is_a_whole_number_where_one_belongs():
    assert repr(fit_annotation(1e3, int | str)) == "1000"
    assert repr(fit_annotation(1e3, float)) == "1000.0"


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("few", int, "a whole number"),
        (1.5, int | None, "a whole number or null"),
        (True, float, "a number"),
        ("no", bool, "true or false"),
        (3, str, "text"),
        ("up", Literal["max", "min"], "'max' or 'min'"),
        ("SIGTERM", Sequence[str], "a list, each item text"),
        ([3], Sequence[str], "a list, each item text"),
        ("a", list, "a list"),
        ([1], dict[str, int], "a mapping"),
        ("print", Callable[..., None], r"a function \(package.module:function\)"),
    ],
)
def test_another_type_is_refused_with_the_expected_one(value, annotation, expected):
    with pytest.raises(TypeError, match=f"^expected {expected}$"):
        fit_annotation(value, annotation)
