import gc
import math
import weakref
from array import array
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import histories, table
from engine.events.histories import Histories
from engine.events.history import Column, HistoryBuffer
from engine.events.readings import Cursor, Readings
from engine.events.scalar_log import ScalarLog
from engine.events.table import KEPT_ROWS, MAX_ROWS

WINDOW = 3
HINTS = defaultdict(lambda: True, {"acc": False})

ONCE = st.lists(st.sampled_from(["a", "eta", "acc"]), max_size=3)  # what a write or evaluation puts
REGULAR = st.builds(  # steps that put the same names, the last one cut short
    lambda once, names, rows, left: [once, *[names] * rows, names[:left]],
    ONCE,
    st.permutations(["a", "b", "acc"]),
    st.integers(0, 6),
    st.integers(0, 3),
)
IRREGULAR = st.lists(st.lists(st.sampled_from(["a", "b", "acc", "c"]), max_size=4), max_size=5)
READS = st.sampled_from(
    ["nothing", "readings", "another window", "recent values", "a history", "all histories"]
)
DATES = st.sampled_from([None] * 9 + [7])  # of puts: most are of the current iteration
VALUES = st.sampled_from([0.0, 1.0, 2.5, -3.0, math.nan, math.inf, -math.inf])


def column(values: list[float], iterations: list[int]) -> Column:
    return Column(array("d", values), array("q", iterations))


def add_steps(found: Histories, names: list[str], start: int, rows: int) -> None:
    """Steps whose values are those of 10 × the iteration + the place of the name."""
    values = [
        value
        for at in range(start, start + rows)
        for value in (at, *(10.0 * at + place for place in range(len(names))))
    ]
    found.add([None, *names] * rows, array("d", values))


class Reader:
    """Somebody who reads now and then, and how far that was."""

    def __init__(self) -> None:
        self.cursor: Cursor = 0
        self.counts: dict[str, int] = {}


def assert_news(readings: Readings, reader: Reader) -> None:
    """That the reader gets what has more values than when it read last."""
    expected = defaultdict(dict)
    for name, (value, at, count) in readings.items():
        if reader.counts.get(name) != count:
            expected[at][name] = value
    news = readings.since(reader.cursor)
    assert repr(sorted(news)) == repr(sorted(expected))
    for at, values in expected.items():
        assert repr(sorted(news[at].items())) == repr(sorted(values.items()))
    assert readings.counts(reader.cursor).items() <= reader.counts.items()
    assert repr(readings.since(readings.counts(reader.cursor))) == repr(
        readings.since(reader.counts)
    )
    reader.cursor = readings.version
    reader.counts = {name: count for name, (_, _, count) in readings.items()}
    assert readings.counts(reader.cursor) == reader.counts
    assert readings.since(reader.cursor) == {}


@pytest.fixture(autouse=True, params=[0, 10**9], ids=["read off the table", "one by one"])
def many_names(request, monkeypatch):
    """However many names there are, what is seen is the same."""
    monkeypatch.setattr(table, "MANY_NAMES", request.param)


@pytest.fixture
def steps():
    """Six steps of two names."""
    found = Histories(lambda: None)
    add_steps(found, ["loss", "acc"], 0, 6)
    return found


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same for all examples
)
@given(
    st.lists(
        st.tuples(REGULAR | IRREGULAR, READS, st.booleans(), st.booleans()),  # gaps, together
        max_size=8,
    ),
    st.data(),
)
def test_whoever_reads_whatever_when_sees_what_was_put(writes, data):
    found, expected, at = Histories(lambda: None), {}, 0
    log, readers = ScalarLog(at), [Reader(), Reader()]
    for steps, read, has_gaps, together in writes:
        for step in steps:
            log.go_to(at := at + (2 if has_gaps else 1))
            is_together = together and len(set(step)) == len(step)
            puts = [(name, data.draw(VALUES), data.draw(DATES)) for name in step]
            if is_together:
                puts = [(name, value, None) for name, value, _ in puts]
                log.put_together({name: value for name, value, _ in puts}, True)
            for name, value, date in puts:
                if not is_together:
                    log.put(name, value, cur_iter=date)
                history = expected.setdefault(name, HistoryBuffer(histories.KEPT_VALUES))
                history.update(value, at if date is None else date)
        names, values = log.take()
        if names:
            found.add(names, values)
        if "window" in read or read == "readings":
            window = WINDOW + ("window" in read)
            readings = {n: e.reading(window if HINTS[n] else 0) for n, e in expected.items()}
            assert repr(dict(found.readings(window, HINTS))) == repr(readings)
            assert_news(found.readings(window, HINTS), data.draw(st.sampled_from(readers)))
        elif read == "recent values":
            for name, history in expected.items():
                recent = found.recent(name, WINDOW)
                assert recent is None or repr(recent) == repr(history.recent(WINDOW))
        elif "histor" in read and expected:
            for name in [*expected][: 1 if read == "a history" else None]:
                assert repr(found[name].values()) == repr(expected[name].values())
    assert list(found) == list(expected)
    assert repr(dict(found.readings(WINDOW, HINTS))) == repr(
        {n: e.reading(WINDOW if HINTS[n] else 0) for n, e in expected.items()}
    )
    for name, history in expected.items():
        assert repr(found[name].values()) == repr(history.values())
        assert found[name].count == history.count


def test_many_steps_are_all_counted_though_the_table_is_cut():
    found = Histories(lambda: None)
    add_steps(found, ["loss", "acc"], 0, 20)
    assert found.readings(5, HINTS)["loss"] == (170.0, 19, 20)
    end = 20
    for rows in (MAX_ROWS + 50, 30, 2 * MAX_ROWS, KEPT_ROWS, MAX_ROWS):
        add_steps(found, ["loss", "acc"], end, rows)
        end += rows
        assert found.readings(5, HINTS)["loss"] == (10.0 * (end - 3), end - 1, end)
        assert found.readings(5, HINTS)["acc"] == (10.0 * (end - 1) + 1, end - 1, end)
    assert found["loss"].count == end
    kept = range(end - histories.KEPT_VALUES, end)
    assert found["loss"].values() == [(10.0 * at, at) for at in kept]


def test_values_that_nobody_has_read_can_be_overwritten(steps):
    assert steps.overwrite_last(np.array([-5, -2]), np.array([7.0, 8.0]))
    assert [value for value, _ in steps["loss"].values()] == [0.0, 10.0, 20.0, 30.0, 7.0, 8.0]
    assert steps["acc"].latest() == 51.0


@pytest.mark.parametrize(
    "read",
    [
        lambda steps: steps["acc"].latest(),
        lambda steps: steps.readings(3, HINTS),
        lambda steps: steps.add([None, "lr"], array("d", [5, 0.1])),
        lambda steps: steps.add([None, "acc"], array("d", [6, 1.0])),
    ],
)
def test_what_was_read_or_is_not_at_the_end_is_not_overwritten(steps, read):
    read(steps)
    assert not steps.overwrite_last(np.array([-2]), np.array([7.0]))
    assert steps["loss"].latest() == 50.0


def test_only_what_was_added_last_is_overwritten(steps):
    add_steps(steps, ["loss", "acc"], 6, 2)
    assert not steps.overwrite_last(np.array([-8, -2]), np.array([7.0, 8.0]))
    assert steps.overwrite_last(np.array([-5, -2]), np.array([7.0, 8.0]))
    assert [value for value, _ in steps["loss"].values()][-3:] == [50.0, 7.0, 8.0]


def test_the_last_values_of_a_name_are_replaced_in_what_is_shown_too(steps):
    steps.readings(3, HINTS)
    steps.replace_last("loss", 2, column([1.0, 2.0, 3.0], [4, 5, 6]))
    steps.replace_last("new", 0, column([5.0], [6]))
    assert steps["loss"].count == 7
    assert steps.readings(3, HINTS) == {
        "loss": (2.0, 6, 7),
        "acc": (51.0, 5, 6),
        "new": (5.0, 6, 1),
    }


def test_an_update_by_hand_is_shown_and_keeps_its_place(steps):
    steps.readings(3, HINTS)
    steps["loss"].update(7.0, 6)
    assert steps.readings(1, HINTS)["loss"] == (7.0, 6, 7)
    add_steps(steps, ["loss", "acc"], 7, 3)
    assert [at for _, at in steps["loss"].values()] == list(range(10))
    assert steps.readings(4, HINTS)["loss"] == (75.0, 9, 10)


def test_a_saved_history_takes_the_place_of_what_there_is(steps):
    saved = steps["loss"].state_dict()
    add_steps(steps, ["loss", "acc"], 6, 2)
    steps.load("loss", saved)
    add_steps(steps, ["loss", "acc"], 8, 1)
    assert [at for _, at in steps["loss"].values()] == [0, 1, 2, 3, 4, 5, 8]
    assert [at for _, at in steps["acc"].values()] == list(range(9))


def test_a_history_that_somebody_holds_does_not_keep_the_others():
    found = Histories(lambda: None)
    add_steps(found, ["loss", "acc"], 0, 6)
    history, reference = found["loss"], weakref.ref(found)
    gc.disable()
    try:
        del found
        assert reference() is None
    finally:
        gc.enable()
    assert history.latest() == 50.0
