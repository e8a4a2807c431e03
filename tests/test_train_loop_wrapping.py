"""TrainerBase around another trainer, as DefaultTrainer is: hooks get every point, once."""

import weakref

import torch

from engine import SimpleTrainer, TrainerBase
from engine.hooks import CallbackHook, IterationTimer, LRScheduler
from small_trainers import Counter, recorder


class Outer(TrainerBase):
    """Wraps another trainer, as DefaultTrainer does."""

    def __init__(self, inner: TrainerBase) -> None:
        super().__init__()
        self._trainer = inner

    def run_step(self) -> None:
        self._trainer.iter = self.iter
        self._trainer.run_step()


def make_inner(model, batches, **options) -> SimpleTrainer:
    return SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1), **options)


def test_hooks_on_a_wrapping_trainer_get_each_point_once_a_step(model, batches):
    calls: list[str] = []
    trainer = Outer(make_inner(model, batches[:2]))
    trainer.register_hooks([recorder(calls)])
    for _ in range(2):
        trainer.train(0, 3)
        assert calls == [
            "before_train 0",
            "before_epoch 0",
            "before_step 0",
            "after_backward 0",
            "after_step 0",
            "before_step 1",
            "after_backward 1",
            "after_step 1",
            "after_epoch 1",
            "before_epoch 2",
            "before_step 2",
            "after_backward 2",
            "after_step 2",
            "after_train 3",
        ]
        calls.clear()


def test_hooks_of_the_wrapped_trainer_get_after_backward_too(model, batches):
    calls: list[str] = []
    inner = make_inner(model, batches)
    inner.register_hooks([recorder(calls, "inner ")])
    trainer = Outer(Outer(inner))
    trainer.register_hooks([CallbackHook(after_backward=lambda t: calls.append("outermost"))])
    trainer.train(0, 2)
    assert calls == ["inner after_backward 0", "outermost", "inner after_backward 1", "outermost"]


def test_hooks_of_a_wrapping_trainer_are_left_alone_when_the_inner_one_trains(model, batches):
    calls: list[str] = []
    inner = make_inner(model, batches)
    trainer = Outer(inner)
    trainer.register_hooks([recorder(calls)])
    trainer.train(0, 1)
    calls.clear()
    inner.train(1, 2)
    assert calls == []


def test_gradients_are_there_in_after_backward_of_a_wrapping_trainer(model, batches):
    before = [p.detach().clone() for p in model.parameters()]
    trainer = Outer(make_inner(model, batches))
    trainer.register_hooks([CallbackHook(after_backward=lambda t: model.zero_grad())])
    trainer.train(0, 2)
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_trainer_is_freed_with_its_last_reference(model, batches):
    trainer = Outer(make_inner(model, batches))
    optimizer = trainer._trainer.optimizer
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    hooks = [IterationTimer(), LRScheduler(optimizer, scheduler), recorder([]), Counter()]
    trainer.register_hooks(hooks)
    trainer.train(0, 3)
    alive = weakref.ref(trainer), weakref.ref(trainer._trainer)
    del trainer
    assert [ref() for ref in alive] == [None, None]


def test_hooks_of_a_trainer_around_two_others_get_after_backward_of_both(model, batches):
    class Two(TrainerBase):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = make_inner(model, batches), make_inner(model, batches)

        def run_step(self) -> None:
            for inner in (self.one, self.other):
                inner.iter = self.iter
                inner.run_step()

    calls: list[int] = []
    trainer = Two()
    trainer.register_hooks([CallbackHook(after_backward=lambda t: calls.append(t.iter))])
    trainer.train(0, 2)
    assert calls == [0, 0, 1, 1]
