from decimal import Decimal
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from engine.events import scalar, scalar_log
from engine.events.scalar_log import (
    MAX_ENTRIES,
    MAX_IN_STEP,
    MAX_KNOWN_TOGETHER,
    ScalarLog,
    find_iterations,
    flatten,
)


def put_all(log: ScalarLog, scalars: dict, smoothing_hint: bool | None) -> None:
    """As a storage puts many."""
    if not log.put_together(scalars, smoothing_hint):
        for name, value in scalars.items():
            log.put(name, value, smoothing_hint)


def test_tensors_become_numbers(monkeypatch):
    monkeypatch.setattr(scalar, "DEFERS_ALL", True)
    log = ScalarLog(0)
    log.put("loss", torch.tensor(7.0))
    log.put("acc", 0.5)
    assert log.has_tensors
    names, values = log.take()
    assert (names, values.tolist()) == ([None, "loss", "acc"], [0.0, 7.0, 0.5])
    assert not log.has_tensors


def test_what_is_put_stands_after_its_iteration():
    log = ScalarLog(4)
    log.put("loss", 1.0)
    log.put("acc", 2.0, cur_iter=3)
    log.put("lr", 0.1, cur_iter=4)
    log.go_to(5)
    put_all(log, {"loss": 3.0, "lr": 1}, True)
    log.put_numbers({"acc": 4.0}, 5)
    log.put_numbers({"acc": 5.0}, 4)
    names, values = log.take()
    assert names == [None, "loss", ("acc", 3), "lr", None, ["loss", "lr"], "acc", ("acc", 4)]
    assert values.tolist() == [4, 1.0, 2.0, 0.1, 5, 3.0, 1.0, 4.0, 5.0]
    metrics = [None, "loss", "acc", "lr", None, "loss", "lr", "acc", "acc"]
    assert find_iterations(names, values) == (metrics, [4, 4, 3, 4, 5, 5, 5, 5, 4])


def test_names_that_are_put_together_again_and_again_are_put_as_one_by_one():
    one_by_one, together = ScalarLog(0), ScalarLog(0)
    steps = [{"a": 1.0, "b": 2.0}] * 3 + [{"a": 1, "b": 2.0}, {"b": 1.0, "a": 2.0}, {"a": 5.0}] * 2
    for at, scalars in enumerate(steps):
        for log in (one_by_one, together):
            log.go_to(at)
            log.open_scope("scope/" if at == 2 else "")
        for name, value in scalars.items():
            one_by_one.put(name, value)
        put_all(together, scalars, True)
    names, values = together.take()
    assert (flatten(names), values) == one_by_one.take()
    assert together.hints == one_by_one.hints
    assert names.count(["a", "b"]) == 4  # but for the one in the scope


def test_what_stays_on_a_device_is_put_one_by_one(monkeypatch):
    log = ScalarLog(0)
    put_all(log, {"a": 1.0, "b": 2.0}, True)
    monkeypatch.setattr(scalar, "DEFERS_ALL", True)
    put_all(log, {"a": 3.0, "b": torch.tensor(4.0)}, True)
    put_all(log, {"a": 5.0, "b": 6}, True)
    names, values = log.take()
    assert names == [None, ["a", "b"], "a", "b", ["a", "b"]]
    assert values.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_numbers_of_any_type_are_put_together_whatever_those_before_were():
    log = ScalarLog(0)
    numbers = [1.5, 2, True, np.float32(4), np.bool_(True), torch.tensor(6.0), Fraction(15, 2)]
    pairs = list(product(numbers, repeat=2))
    for one, other in pairs:
        put_all(log, {"a": 0.0, "b": one, "c": other}, True)
    names, values = log.take()
    assert names == [None] + [["a", "b", "c"]] * len(pairs)
    assert values.tolist() == [0.0, *(float(n) for pair in pairs for n in (0.0, *pair))]


def test_tensors_that_come_in_each_step_are_not_added_up():
    class Counted(torch.Tensor):
        additions = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.additions += func in (torch.Tensor.add, torch.Tensor.__radd__)
            return super().__torch_function__(func, types, args, kwargs)

    log = ScalarLog(0)
    put_all(log, {"a": 1.0, "b": 2.0}, True)
    for _ in range(5):
        put_all(log, {"a": 1.0, "b": torch.tensor(2.0).as_subclass(Counted)}, True)
    assert Counted.additions == 1  # as floats had come before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("4", "metric 'b' must be a Python or NumPy number or a one-element tensor, got str: '4'"),
        (Decimal(4), "metric 'b' must be a Python or NumPy number or a one-element tensor"),
        (10**400, "metric 'b' is an int too large for a float"),
        (torch.ones(2), "metric 'b' must be one real number, got a tensor of shape"),
        (None, "metric 'b' must be a Python or NumPy number"),
    ],
)
def test_what_is_no_number_is_told_by_its_name_after_numbers_too(value, message):
    log = ScalarLog(0)
    for _ in range(2):
        put_all(log, {"a": 1.0, "b": 2.0}, True)
    with pytest.raises((TypeError, ValueError), match=message):
        put_all(log, {"a": 3.0, "b": value}, True)
    assert len(log.take()[0]) == 3


def test_what_adds_up_to_a_number_and_is_none_is_told_by_its_name():
    class Meter:
        def __radd__(self, other):
            return other + 1.0

    log = ScalarLog(0)
    for _ in range(2):
        put_all(log, {"a": 1.0, "b": 2.0}, True)
    with pytest.raises(TypeError, match=r"metric 'b' must be a Python or NumPy number .* Meter"):
        put_all(log, {"a": 3.0, "b": Meter()}, True)


def test_what_is_no_number_leaves_no_trace_of_what_is_put_with_it():
    log = ScalarLog(0)
    put_all(log, {"a": 1.0, "b": 2.0}, True)
    with pytest.raises(TypeError, match="metric 'b' must be a Python or NumPy number"):
        put_all(log, {"a": 3.0, "b": "4"}, True)
    with pytest.raises(TypeError, match="can only concatenate str"):
        put_all(log, {"c": 3.0, 4: 4.0}, True)
    with pytest.raises(ValueError, match="metric 'b' was put with smoothing_hint=True before"):
        put_all(log, {"c": 3.0, "b": 4.0}, False)
    assert log.take()[0] == [None, ["a", "b"]]
    assert log.hints == {"a": True, "b": True}


def test_names_that_are_put_together_keep_their_hints():
    log = ScalarLog(0)
    put_all(log, {"a": 1.0, "b": 2.0}, True)
    with pytest.raises(ValueError, match="metric 'a' was put with smoothing_hint=True before"):
        put_all(log, {"a": 1.0, "b": 2.0}, False)


def test_names_that_are_put_together_with_no_hint_at_all_are_unsmoothed():
    log = ScalarLog(0)
    for _ in range(2):
        put_all(log, {"a": 1.0}, None)
    assert log.hints == {"a": False}


def test_names_known_in_a_scope_are_not_known_outside():
    log = ScalarLog(0)
    for prefix in ("scope/", "", "scope/"):
        log.open_scope(prefix)
        put_all(log, {"a": 1.0}, True)
    assert log.take()[0] == [None, "scope/a", ["a"], "scope/a"]
    assert log.hints == {"scope/a": True, "a": True}


def test_a_hint_that_replaces_that_of_a_checkpoint_counts_for_names_together_too():
    log = ScalarLog(0)
    log.take_hint("acc", True)
    put_all(log, {"acc": 1.0}, True)
    log.put("acc", 2.0, smoothing_hint=False)
    with pytest.raises(ValueError, match="metric 'acc' was put with smoothing_hint=False before"):
        put_all(log, {"acc": 3.0}, True)


def test_hints_that_are_refused_leave_those_of_a_checkpoint():
    log = ScalarLog(0)
    log.take_hint("acc", True)
    log.put("loss", 1.0)
    with pytest.raises(ValueError, match="metric 'loss' was put with smoothing_hint=True before"):
        put_all(log, {"acc": 1.0, "loss": 1.0}, False)
    assert log.hints == {"acc": True, "loss": True}
    put_all(log, {"acc": 1.0}, False)  # it may still change
    assert log.hints == {"acc": False, "loss": True}


@pytest.mark.parametrize("count", [1, 12])
def test_groups_of_names_are_told_apart_by_all_of_their_names(count):
    log = ScalarLog(0)
    groups = [["first", *(f"{letter}{at}" for at in range(count))] for letter in "abab"]
    for number, names in enumerate(groups):
        put_all(log, dict.fromkeys(names, float(number)), True)
    assert log.take()[0] == [None, *groups]


def test_the_metrics_of_a_step_stay_in_its_iteration_whatever_another_thread_does():
    log = ScalarLog(5)

    class Slow(dict):
        def items(self):
            yield "a", 1.0
            log.go_to(6)  # as the main thread may
            yield "b", 2.0

    log.put_numbers(Slow(), 5)
    names, values = log.take()
    metrics, iterations = find_iterations(names, values)
    assert dict(zip(metrics, iterations, strict=True)) == {None: 6, "a": 5, "b": 5}


def test_what_another_thread_puts_while_the_log_is_emptied_stays(monkeypatch):
    monkeypatch.setattr(scalar, "DEFERS_ALL", True)
    log = ScalarLog(0)
    log.put("loss", torch.tensor(1.0))

    def fetch(tensors):
        log.put("acc", 0.5)  # as another thread may, while a device is waited for
        return [float(one) for one in tensors]

    monkeypatch.setattr(scalar_log, "fetch", fetch)
    assert log.take()[0] == [None, "loss"]
    assert log.take()[0] == [None, "acc"]


def test_an_iteration_that_is_set_twice_begins_once():
    log = ScalarLog(0)
    for at in (0, 1, 1):
        log.go_to(at)
        log.put("loss", 1.0)
    assert log.take()[0] == [None, "loss", None, "loss", "loss"]


def test_ever_new_names_together_do_not_fill_the_memory():
    log = ScalarLog(0, lambda: log.take())
    for number in range(3 * MAX_KNOWN_TOGETHER):
        put_all(log, {f"metric{number}": 1.0}, True)
        assert len(log.known_together) <= MAX_KNOWN_TOGETHER


def test_a_log_in_which_scalars_are_put_together_is_emptied_when_it_is_full():
    log = ScalarLog(0, lambda: log.take())
    scalars = {f"metric{number}": 1.0 for number in range(100)}
    for at in range(2 * MAX_ENTRIES // 100):
        log.go_to(at)
        put_all(log, scalars, True)
        assert len(log.entries) + 100 * sum(isinstance(name, list) for name in log.entries) < (
            MAX_ENTRIES + 300
        )
    for _ in range(2 * MAX_IN_STEP // 100):  # in one iteration
        put_all(log, scalars, True)
        assert 100 * sum(isinstance(name, list) for name in log.entries) < MAX_IN_STEP + 300


def test_a_log_is_emptied_between_steps():
    taken = []
    log = ScalarLog(0, lambda: taken.append(log.take()[0]))
    for at in range(MAX_ENTRIES):
        log.go_to(at)
        for name in "abc":
            log.put(name, 1.0)
    assert taken == [[None, "a", "b", "c"] * (len(taken[0]) // 4)] * len(taken)
    assert len(taken) == 7


def test_the_iteration_goes_on_when_the_log_was_emptied():
    log = ScalarLog(4)
    log.put("loss", 1.0)
    assert log.has_news
    log.take()
    assert not log.has_news
    log.put("eta", 2.0)
    log.go_to(5)
    assert log.take()[0] == [None, "eta"]
    assert not log.has_news
    log.put("loss", 3.0)
    names, values = log.take()
    assert (names, values.tolist()) == ([None, "loss"], [5.0, 3.0])


def test_a_log_that_only_counts_iterations_stays_small():
    log = ScalarLog(0, lambda: log.take())
    for at in range(3 * MAX_ENTRIES):
        log.go_to(at)
        assert len(log.entries) <= MAX_ENTRIES + 2
    assert log.iteration == at


@pytest.mark.parametrize("iteration", [float("nan"), 2**60, float("-inf")])
def test_what_is_no_iteration_is_refused(iteration):
    log = ScalarLog(0)
    with pytest.raises(ValueError, match=r"storage\.iter: .* is no iteration"):
        log.go_to(iteration)
    with pytest.raises(ValueError, match=r"metric 'loss': .* is no iteration"):
        log.put("loss", 1.0, cur_iter=iteration)
    assert not log.has_news


def test_a_name_keeps_its_first_hint():
    log = ScalarLog(0)
    log.set_hint(["loss"], True)
    log.set_hint(["loss"], True)
    with pytest.raises(ValueError, match="metric 'loss' was put with smoothing_hint=True before"):
        log.set_hint(["loss"], False)
    assert log.hints == {"loss": True}
