"""HookList and the errors it collects; how a trainer uses it is in tests/test_train_loop.py."""

import sys
import time

import pytest

from engine import HookBase
from engine.hooks.base import POINTS
from engine.hooks.hook_list import EvaluationLeft, HookList, attach_error


class Sleepy(HookBase):
    """Overrides nothing."""


class Busy(HookBase):
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def before_train(self) -> None:
        self.calls.append(f"{self.name} begins")

    def after_eval(self, results: dict) -> None:
        self.calls.append(f"{self.name} got {results}")

    def after_train(self) -> None:
        self.calls.append(f"{self.name} ends")


class Busier(Busy):
    """Inherits its points."""


class Leaving(Busy):
    """Leaves an evaluation."""

    def after_eval(self, results: dict) -> None:
        super().after_eval(results)
        raise EvaluationLeft


def test_only_overridden_methods_are_called():
    hooks = HookList()
    hooks.add([Sleepy(), Busy("a", []), Busier("b", [])], priority=None)
    assert [len(hooks.calls[point]) for point in ("before_train", "before_step")] == [2, 0]


def test_a_point_hands_its_argument_on():
    calls: list[str] = []
    hooks = HookList()
    hooks.add([Busy("a", calls), Busier("b", calls)], priority=None)
    hooks.run("after_eval", 5)
    assert calls == ["a got 5", "b got 5"]


def test_a_point_that_was_left_goes_on_from_the_hook_it_was_left_at(log):
    calls: list[str] = []
    hooks = HookList()
    hooks.add([Busy("a", calls), Busy("b", calls), Leaving("c", calls)], priority=None)
    with pytest.raises(EvaluationLeft) as left:
        hooks.run("after_eval", 1)
    assert (left.value.point, left.value.hook) == ("after_eval", "Leaving")
    calls.clear()
    with pytest.raises(EvaluationLeft):
        hooks.run("after_eval", 2, first="Busy#2")
    assert calls == ["b got 2", "c got 2"]
    hooks.run("after_eval", 3, first="Busy#3")
    assert calls == ["b got 2", "c got 2"]
    assert "after_eval was left at the hook Busy#3: there is no such hook now" in log.text


def test_an_evaluation_left_in_the_end_is_no_error_but_the_end_is_not_complete():
    def leave() -> None:
        raise EvaluationLeft

    calls: list[str] = []
    leaving = Busy("a", calls)
    leaving.after_train = leave
    hooks = HookList()
    hooks.add([leaving, Busy("b", calls)], priority=None)
    hooks.start()
    assert not hooks.has_failed
    hooks.finish()
    assert calls == ["a begins", "b begins", "b ends"]
    assert hooks.has_failed


def test_a_hook_with_a_method_set_on_the_instance_is_called():
    calls: list[str] = []
    hook = Sleepy()
    hook.after_step = lambda: calls.append("set")
    hooks = HookList()
    hooks.add([hook], priority=None)
    hooks.run("after_step")
    assert calls == ["set"]


def test_hooks_that_were_not_started_are_not_ended_and_none_is_ended_twice():
    calls: list[str] = []
    hooks = HookList()
    hooks.add([Busy("a", calls)], priority=None)
    hooks.finish()
    assert calls == []
    hooks.start()
    hooks.finish()
    hooks.finish()
    assert calls == ["a begins", "a ends"]


def test_a_given_priority_overrides_that_of_the_class():
    low, high = Sleepy(), Sleepy()
    hooks = HookList()
    hooks.add([low], priority="LOWEST")
    hooks.add([high], priority=None)
    assert hooks.hooks == [high, low]
    assert Sleepy.priority == 50


def test_states_are_kept_by_a_name_for_each_hook_and_empty_ones_left_out():
    class Stateful(HookBase):
        def __init__(self, state: dict) -> None:
            self.state = state

        def state_dict(self) -> dict:
            return self.state

        def load_state_dict(self, state_dict: dict) -> None:
            self.state = state_dict

    saved = HookList()
    saved.add([Stateful({"x": 1}), Sleepy(), Stateful({}), Stateful({"x": 3})], priority=None)
    states = saved.state_dict()
    assert [name.rpartition(".")[2] for name in states] == ["Stateful", "Stateful#3"]

    loaded = HookList()
    hooks = [Stateful({}), Stateful({"x": 2}), Stateful({})]
    loaded.add(hooks, priority=None)
    loaded.load_state_dict(states)
    assert [hook.state for hook in hooks] == [{"x": 1}, {"x": 2}, {"x": 3}]


def rows(table: str) -> list[list[str]]:
    """The words of each row, without the headers."""
    return [line.split() for line in table.splitlines()[2:]]


def test_the_order_is_a_row_for_each_hook_with_its_priority_and_points():
    hooks = HookList()
    hooks.add([Busier("a", []), Sleepy(), Busier("b", [])], priority=None)
    hooks.add([Busy("c", [])], priority="HIGH")
    points = ["before_train,", "after_train,", "after_eval"]
    assert rows(hooks.order_table()) == [
        ["Busy", "30", *points],
        ["Busier", "50", *points],
        ["Sleepy", "50", "none"],
        ["Busier#2", "50", *points],
    ]


def took(hooks: HookList, hook: HookBase, **seconds: float) -> None:
    """As if the hook had taken these seconds at these points."""
    for point, spent in seconds.items():
        next(call for call in hooks.calls[point] if call.hook is hook).seconds = spent


def test_the_tables_fit_a_terminal():
    everywhere = Sleepy()
    for point in POINTS:
        setattr(everywhere, point, lambda: None)
    hooks = HookList()
    hooks.add([everywhere], priority=None)
    took(hooks, everywhere, **dict.fromkeys(POINTS, 1000.0))
    for table in (hooks.order_table(), hooks.time_table()):
        assert all(point in table for point in POINTS)
        assert max(map(len, table.splitlines())) < 100


def test_times_are_those_of_the_hooks_that_took_some_the_longest_first():
    quick, slow, slower = Busy("a", []), Busy("b", []), Busier("c", [])
    hooks = HookList()
    hooks.add([Sleepy(), quick, slow, slower], priority=None)
    took(hooks, quick, before_train=0.0004, after_eval=0.0004)
    took(hooks, slow, before_train=0.0123, after_eval=0.0004)
    took(hooks, slower, after_train=1.5, after_eval=0.25)
    assert rows(hooks.time_table()) == [
        ["Busier", "1.750", "after_train", "1.500,", "after_eval", "0.250"],
        ["Busy#2", "0.013", "before_train", "0.012"],
        ["others", "(2)", "0.001"],
    ]


def test_times_are_counted_anew_in_each_run():
    class OnceSlow(HookBase):
        delay = 0.1

        def before_train(self) -> None:
            time.sleep(self.delay)
            self.delay = 0.0

    hooks = HookList()
    hooks.add([OnceSlow()], priority=None)
    times = []
    for _ in range(2):
        hooks.start()
        times.append(hooks.calls["before_train"][0].seconds)
    assert times[0] > times[1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes before Python 3.11")
def test_notes_of_a_later_error_go_to_the_first_with_it(log):
    first, second, third = ValueError("first"), OSError("second"), KeyError("third")
    attach_error(second, third)
    attach_error(first, second)
    assert first.__notes__ == [
        "After that, another error came: OSError: second",
        "After that, another error came: KeyError: 'third'",
    ]


def test_later_errors_are_logged_with_their_traceback(log):
    later = OSError("no space left")
    attach_error(ValueError("first"), later)
    (record,) = log.records
    assert record.message == "After that, another error came: OSError: no space left"
    assert record.exc_info[1] is later


def test_a_misspelt_point_is_told(log):
    class Hook(HookBase):
        def after_stepp(self):
            pass

        def after_step_of_mine(self):
            pass

    HookList().add([Hook()], None)
    assert "Hook has a method after_stepp, which is never called: is after_step meant?" in log.text
    assert "after_step_of_mine" not in log.text
