import inspect

import pytest

from engine import HookBase
from engine.hooks import Priority
from engine.hooks.base import POINTS


def test_the_points_are_all_methods_of_a_hook_but_those_of_its_state():
    methods = [name for name, _ in inspect.getmembers(HookBase, inspect.isfunction)]
    assert sorted(POINTS) == sorted(set(methods) - {"state_dict", "load_state_dict"})


def test_a_plain_hook_does_nothing_at_any_point():
    hook = HookBase()
    for point in POINTS:
        has_argument = point in ("after_eval_step", "after_eval")
        assert getattr(hook, point)(*[{}] * has_argument) is None
    assert hook.state_dict() == {}
    assert hook.priority == Priority.NORMAL


@pytest.mark.parametrize(
    ("given", "priority"),
    [("HIGHEST", 0), ("very_low", 90), (Priority.LOW, 70), (0, 0), (55, 55), (100, 100)],
)
def test_a_priority_is_a_name_or_a_number(given, priority):
    assert Priority.parse(given) == priority


@pytest.mark.parametrize("wrong", [-1, 101, "URGENT", "", 5.0, None])
def test_other_priorities_are_refused_with_the_names_there_are(wrong):
    with pytest.raises(ValueError, match=r"0 to 100 or one of HIGHEST, .* got ") as error:
        Priority.parse(wrong)
    assert repr(wrong) in str(error.value)
