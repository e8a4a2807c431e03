"""LRScheduler: moves the learning rate, and stores it."""

from collections import Counter
from typing import Any

import torch
from fvcore.common.param_scheduler import ParamScheduler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from engine.hooks.base import HookBase, Priority
from engine.solver.lr_scheduler import LRMultiplier


class LRScheduler(HookBase):
    """Steps a schedule after each step, and stores the learning rate of the step as `lr`.

    `scheduler` is one of torch's, or a ParamScheduler, which is a curve over the whole run that
    multiplies the learning rate of each group. What is not given is taken from the trainer.
    """

    priority = Priority.HIGH  # a checkpoint of this step then holds the schedule after it

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: TorchLRScheduler | ParamScheduler | None = None,
    ) -> None:
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise TypeError(f"optimizer must be one of torch's, got {optimizer!r:.80}")
        if scheduler is not None:
            _check_schedule(scheduler)
        self._given_optimizer = self._optimizer = optimizer
        self._scheduler = scheduler
        self._multiplier: LRMultiplier | None = None  # follows a ParamScheduler in one run

    def before_train(self) -> None:
        self._follow(self._given_optimizer or self.trainer.optimizer)  # type: ignore[attr-defined]
        self._put = self.trainer.storage.put_scalar

    def after_step(self) -> None:
        # A hook may have put another optimizer, or another schedule, into the trainer.
        optimizer = self._given_optimizer or self.trainer.optimizer  # type: ignore[attr-defined]
        if optimizer is not self._optimizer:
            self._follow(optimizer)
        self._put("lr", optimizer.param_groups[self._best_param_group_id]["lr"], False)
        self.scheduler.step()

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._multiplier = optimizer, None
        if self.scheduler is None:
            raise ValueError("LRScheduler got no schedule, and the trainer has none")
        _check_schedule(self.scheduler)
        if isinstance(self.scheduler, ParamScheduler):
            self._multiplier = LRMultiplier(
                optimizer,
                self.scheduler,
                self.trainer.max_iter,
                last_iter=self.trainer.iter - 1,
            )
        self._best_param_group_id = self.get_best_param_group_id(optimizer)

    @property
    def scheduler(self) -> Any:
        """The schedule: the one given, or the trainer's."""
        return self._multiplier or self._scheduler or getattr(self.trainer, "scheduler", None)

    @staticmethod
    def get_best_param_group_id(optimizer: torch.optim.Optimizer) -> int:
        """The group whose learning rate tells most: the largest, or one with the commonest rate
        where each has one parameter."""
        groups = optimizer.param_groups
        largest = max(range(len(groups)), key=lambda index: len(groups[index]["params"]))
        if len(groups[largest]["params"]) > 1:
            return largest
        rates = [float(group["lr"]) for group in groups]
        return rates.index(Counter(rates).most_common(1)[0][0])

    def state_dict(self) -> dict[str, Any]:
        # A schedule of the user's own need not be one of torch's.
        return self.scheduler.state_dict() if hasattr(self.scheduler, "state_dict") else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if hasattr(self.scheduler, "load_state_dict"):
            self.scheduler.load_state_dict(state_dict)


def _check_schedule(scheduler: Any) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "LRScheduler steps a schedule after each step of training; ReduceLROnPlateau wants "
            "a metric: step it in the after_eval(results) of a hook of your own"
        )
    is_made = not isinstance(scheduler, type | torch.optim.Optimizer)
    if not isinstance(scheduler, ParamScheduler) and not (is_made and hasattr(scheduler, "step")):
        raise TypeError(
            "scheduler must be one of torch.optim.lr_scheduler or a ParamScheduler, got "
            f"{scheduler!r:.80}"
        )
