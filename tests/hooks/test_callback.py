import weakref

import pytest
import torch

from engine.hooks import CallbackHook
from small_trainers import Steps


def test_each_function_is_called_with_the_trainer():
    seen = []
    trainer = Steps()
    trainer.register_hooks(
        [
            CallbackHook(
                before_train=lambda t: seen.append(("before_train", t.iter)),
                before_step=lambda t: seen.append(("before_step", t.iter)),
                after_backward=lambda t: seen.append(("after_backward", t.iter)),
                after_step=lambda t: seen.append(("after_step", t.iter)),
                after_train=lambda t: seen.append(("after_train", t.max_iter)),
            )
        ]
    )
    once = [
        ("before_train", 0),
        ("before_step", 0),
        ("after_backward", 0),
        ("after_step", 0),
        ("after_train", 1),
    ]
    trainer.train(0, 1)
    assert seen == once
    trainer.train(0, 1)
    assert seen == 2 * once


def test_functions_that_are_not_given_are_not_called():
    trainer = Steps()
    trainer.register_hooks([CallbackHook(), CallbackHook(before_train=None)])
    trainer.train(0, 1)
    assert not any(trainer._hook_list.calls.values())


def test_a_mistyped_point_is_refused_with_those_there_are():
    with pytest.raises(TypeError, match=r"no point 'after_stepp'; there are .*'after_step'"):
        CallbackHook(after_stepp=print)


def test_what_cannot_be_called_is_refused_at_once():
    with pytest.raises(TypeError, match="after_epoch is called with the trainer, got 'print'"):
        CallbackHook(after_epoch="print")


def test_functions_are_named_not_given_by_position():
    with pytest.raises(TypeError):
        CallbackHook(print)


def test_a_method_of_a_subclass_is_called_too():
    class Own(CallbackHook):
        count = 0

        def after_step(self):
            self.count += 1

    seen: list[int] = []
    hook = Own(after_step=lambda trainer: seen.append(trainer.iter))
    Steps(hook).train(0, 3)
    assert (seen, hook.count) == ([0, 1, 2], 3)


def test_what_its_functions_refer_to_is_freed_with_it():
    model = torch.nn.Linear(1, 1)
    reference = weakref.ref(model)
    hook = CallbackHook(after_step=lambda trainer, model=model: None)
    del model, hook
    assert reference() is None
