import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.history import Column
from engine.events.scalar_log import ScalarLog

STEPS = st.lists(st.lists(st.sampled_from(["loss", "acc", "time"])), max_size=8)

ONCE = st.lists(st.sampled_from(["a", "eta", "accuracy"]))  # what was put before the steps

REGULAR = st.builds(  # the same names in each step, the last one cut short
    lambda names, left: [names] * 6 + [names[:left]], st.permutations("abc"), st.integers(0, 3)
)

AFTER_ONCE = st.builds(lambda once, steps: [once, *steps], ONCE, REGULAR)


def put_steps(log: ScalarLog, steps: list[list[str]]) -> None:
    """Log steps that put these names, with the values 0.0, 1.0, 2.0, …"""
    for iteration, names in enumerate(steps):
        for name in names:
            log.entries += name, len(log.entries) / 3, iteration


def lists_of(columns: dict[str, Column]) -> dict[str, tuple[list[float], list[int]]]:
    return {
        name: (values.tolist(), iterations.tolist())
        for name, (values, iterations) in columns.items()
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS | REGULAR | AFTER_ONCE, min_size=1, max_size=3))
def test_the_columns_are_the_scalars_of_each_name_in_their_order(writes):
    log = ScalarLog(0)
    for steps in writes:
        put_steps(log, steps)
        expected: dict[str, tuple[list, list]] = {}
        for at in range(0, len(log.entries), 3):
            name, value, iteration = log.entries[at : at + 3]
            values, iterations = expected.setdefault(name, ([], []))
            values.append(value)
            iterations.append(iteration)
        names, column = log.take()
        columns = log.by_name(names, column)
        assert lists_of(columns) == expected
        assert list(columns) == list(expected)
        assert log.entries == []


def test_tensors_become_numbers():
    log = ScalarLog(0)
    put_steps(log, [["loss", "acc"]])
    log.entries += "loss", torch.tensor(7.0), 1, "acc", 0.5, 1
    log.has_tensors = True
    names, column = log.take()
    columns = log.by_name(names, column)
    assert lists_of(columns) == {"loss": ([0.0, 7.0], [0, 1]), "acc": ([1.0, 0.5], [0, 1])}
    assert not log.has_tensors


def test_a_name_keeps_its_first_hint():
    log = ScalarLog(0)
    log.check_hint("loss", True)
    log.check_hint("loss", True)
    with pytest.raises(ValueError, match="metric 'loss' was put with smoothing_hint=True before"):
        log.check_hint("loss", False)
    assert log.hints == {"loss": True}
