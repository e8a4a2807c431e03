import math
from array import array

import numpy as np
import pytest

from engine.events.history import Column
from engine.events.table import KEPT_ROWS, Table, find_cycle


def rows(start: int, count: int, step: int = 1) -> array:
    """Of two names, with values that are the iteration and its double."""
    iterations = range(start, start + count * step, step)
    return array("d", [value for at in iterations for value in (at, at, 2 * at)])


@pytest.fixture
def table():
    """Four rows of two names."""
    made = Table(["loss", "double"])
    made.add(rows(0, 4))
    return made


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ([None, "loss", "double"] * 3, 3),
        ([None, None, "loss", "double"], 1),
        ([None, "eta", None, "loss", "double"], 1),
        ([None, "double", *[None, "loss", "double"] * 2], 2),
        ([None, "accuracy", "eta", "lr", None, "loss", "double"], 1),
        ([None, "loss", "double", "loss"], 0),
        ([None, "loss", "double", None], 0),
        ([None, "eta"], 0),
        (["double"], 0),
    ],
)
def test_rows_are_found_after_what_was_put_once(table, names, rows):
    assert table.count_rows(names) == rows


def test_rows_of_names_that_were_put_together_are_found():
    together = ["a", "b"]
    table = Table([together, "loss"])
    assert table.names == ["a", "b", "loss"]
    assert table.count_rows([None, "eta", *[None, together, "loss"] * 3]) == 3
    assert table.count_rows([None, ["a", "c"], "loss"]) == 0
    evaluation = [f"group{number}/accuracy" for number in range(50)]
    assert table.count_rows([None, *evaluation, *[None, together, "loss"] * 3]) == 3


@pytest.mark.parametrize(
    ("names", "cycle"),
    [
        ("-ab-ab-ab", "ab"),
        ("-e-abc-abc", "abc"),
        ("--ba-ba", "ba"),
        ("-abc", ""),
        ("-abb-abb", ""),
        ("-ab-ba", ""),
        ("-aba-aba", ""),
        ("-abab", ""),
        ("---", ""),
    ],
)
def test_a_cycle_is_what_comes_in_each_of_the_last_iterations(names, cycle):
    assert find_cycle([None if name == "-" else name for name in names]) == list(cycle)


def test_what_is_put_for_another_iteration_is_in_no_cycle():
    assert find_cycle([None, "loss", ("acc", 3)] * 2) == []


def test_names_that_are_put_together_are_in_a_cycle_unless_one_comes_twice():
    assert find_cycle([None, "a", ["b", "c"]] * 2) == ["a", ["b", "c"]]
    assert find_cycle([None, "c", ["b", "c"]] * 2) == []


def test_a_column_is_taken_once(table):
    assert table.take("double") == Column(array("d", [0, 2, 4, 6]), array("q", [0, 1, 2, 3]))
    assert table.take("double") is None
    table.add(rows(4, 1))
    assert table.take("double") == Column(array("d", [8]), array("q", [4]))
    assert table.take("accuracy") is None


def test_medians_are_read_of_successive_iterations_with_one_more_before(table):
    assert table.read(3) == ([2.0, 4.0], [3.0, 6.0], 3)
    assert table.read(2) == ([2.5, 5.0], [3.0, 6.0], 3)
    assert table.read(4) is None
    table.add(rows(5, 2))
    assert table.read(1) == ([6.0, 12.0], [6.0, 12.0], 6)
    assert table.read(2) is None


def test_recent_values_are_read_of_successive_iterations_with_one_more_before(table):
    assert table.recent("double", 3) == [2.0, 4.0, 6.0]
    assert table.recent("double", 4) is None
    assert table.recent("accuracy", 1) is None
    table.add(rows(4, 2))
    assert table.recent("loss", 5) == [1.0, 2.0, 3.0, 4.0, 5.0]
    table.add(rows(7, 2))
    assert table.recent("loss", 1) == [8.0]
    assert table.recent("loss", 2) is None


@pytest.mark.parametrize("dates", [[4, 6, 5], [5, 4], [4, 4], [4, 5, 7]])
def test_iterations_that_do_not_follow_one_another_are_not_read(table, dates):
    table.add(array("d", [value for at in dates for value in (at, 1.0, 2.0)]))
    assert table.recent("loss", 1) is None
    assert table.read(1) is None


@pytest.mark.filterwarnings("error")
def test_medians_of_what_is_not_finite_are_those_of_a_history():
    table = Table(["a", "b", "c"])
    rows = [0, 0, 0, 0], [1, math.nan, math.inf, 1e308], [2, 1, -math.inf, 1.5e308]
    table.add(array("d", [*rows[0], *rows[1], *rows[2]]))
    medians, _, _ = table.read(2)
    assert str(medians) == "[nan, nan, inf]"


def test_values_are_overwritten_while_they_are_not_taken(table):
    assert table.overwrite(np.array([-4, -1]), np.array([7.0, 9.0]))
    assert table.take("double").values.tolist() == [0.0, 2.0, 7.0, 9.0]
    assert not table.overwrite(np.array([-2]), np.array([5.0]))


def test_the_rows_that_are_kept_are_the_last_ones(table):
    table.add(rows(4, KEPT_ROWS))
    for name in table.names:
        table.take(name)
    assert table.cut() == 4
    table.add(rows(4 + KEPT_ROWS, 1))
    assert table.rows == KEPT_ROWS + 1
    assert table.take("loss").iterations.tolist() == [KEPT_ROWS + 4]
    assert table.read(KEPT_ROWS)[1] == [KEPT_ROWS + 4.0, 2.0 * KEPT_ROWS + 8]
