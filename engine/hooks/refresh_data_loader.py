"""RefreshDataLoader: a new loader while training, for data that changes."""

from collections.abc import Callable, Iterable
from typing import Any

from engine.hooks.base import HookBase, Priority
from engine.hooks.joint_period import JointPeriod
from engine.utils.periods import is_due, read_period


class RefreshDataLoader(HookBase):
    """Replaces the trainer's data loader every `period` by a new one that `builder` makes.

    For a data set that training itself changes, such as by mining hard examples.
    """

    priority = Priority.VERY_LOW  # after hooks and evaluations that change the data

    def __init__(self, period: int | str, builder: Callable[[], Iterable[Any]]) -> None:
        if not callable(builder):
            given = type(builder).__name__
            raise TypeError(f"builder must be a function that builds a loader, got a {given}")
        self._period = read_period(period, JointPeriod)
        self._builder = builder

    def after_step(self) -> None:
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        if is_due(self._period, self.trainer) and not is_last:
            self.trainer.reset_data_loader(self._builder)  # type: ignore[attr-defined]
