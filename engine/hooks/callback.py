"""CallbackHook: functions as a hook."""

import weakref
from collections.abc import Callable
from typing import Any

from engine.hooks.base import POINTS, HookBase


class CallbackHook(HookBase):
    """Calls the given functions with the trainer at the points they are named for.

    `CallbackHook(after_step=lambda trainer: print(trainer.iter))`; any point of HookBase may be
    given. Those of an evaluation also get its argument: `after_eval=f` calls `f(trainer, results)`.
    """

    def __init__(
        self,
        *,
        before_train: Callable[..., None] | None = None,
        after_train: Callable[..., None] | None = None,
        before_step: Callable[..., None] | None = None,
        after_step: Callable[..., None] | None = None,
        **others: Callable[..., None] | None,
    ) -> None:
        callbacks = {
            "before_train": before_train,
            "after_train": after_train,
            "before_step": before_step,
            "after_step": after_step,
            **others,
        }
        for point, callback in callbacks.items():
            if point not in POINTS:
                raise TypeError(f"CallbackHook has no point {point!r}; there are {POINTS}")
            if callback is not None and not callable(callback):
                raise TypeError(f"{point} is called with the trainer, got {callback!r:.80}")
            if callback is not None:
                setattr(self, point, self._with_trainer(callback, getattr(type(self), point)))

    def _with_trainer(
        self, callback: Callable[..., None], of_class: Callable[..., None]
    ) -> Callable[..., None]:
        myself = weakref.proxy(self)  # a cycle would keep alive what the function refers to

        def call(*args: Any) -> None:
            callback(myself.trainer, *args)
            of_class(myself, *args)  # a subclass may have one of its own

        return call
