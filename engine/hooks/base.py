"""HookBase: something that acts around the steps of a trainer."""

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.train_loop import TrainerBase

logger = logging.getLogger(__name__)

POINTS = (
    "before_train",
    "before_epoch",
    "before_step",
    "after_backward",
    "after_step",
    "after_epoch",
    "after_train",
    "before_eval",
    "before_eval_step",
    "after_eval_step",
    "after_eval",
)


class Priority(IntEnum):
    """When a hook runs among the others at a point: a lower number runs earlier."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100

    @classmethod
    def parse(cls, value: "int | str") -> int:
        """A priority given as a name in any case or as a number from 0 to 100."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return int(cls[value.upper()])
        if isinstance(value, int) and 0 <= value <= 100:
            return int(value)
        names = ", ".join(cls.__members__)
        raise ValueError(f"priority must be 0 to 100 or one of {names}; got {value!r}")


class HookBase:
    """Base class of hooks. Each method is a point of the loop, and does nothing here::

        hook.before_train()
        for trainer.iter in range(start_iter, max_iter):
            hook.before_epoch()       # where the length of an epoch is known: at its first step
            hook.before_step()
            trainer.run_step()        # calls hook.after_backward() before the optimizer's step
            hook.after_step()
            hook.after_epoch()        # at the last step of an epoch
        hook.after_train()            # always, also after an error

    and in an evaluation before_eval, then before_eval_step and after_eval_step(outputs) for each
    batch, then after_eval(results).

    Hooks run by `priority`, then in the order of registration. `self.trainer` is the trainer.
    Keep `before_step` cheap: the time of a step is measured from there; slow work goes into
    `after_step`. A hook with state overrides `state_dict` and `load_state_dict`.
    """

    trainer: "TrainerBase"
    priority: int = Priority.NORMAL
    is_joint: bool = False
    """Whether it waits for other ranks, so that all must have it."""

    def before_train(self) -> None:
        """Before the first step."""

    def after_train(self) -> None:
        """After the last step or an error (`self.trainer.failed` tells which)."""

    def before_epoch(self) -> None:
        """Before the first step of an epoch, and where a run is resumed inside one."""

    def after_epoch(self) -> None:
        """After the last step of an epoch."""

    def before_step(self) -> None:
        """Before each step."""

    def after_backward(self) -> None:
        """When the gradients of a step are complete, before they are clipped and used.

        In float16 they are still multiplied by the loss scale.
        """

    def after_step(self) -> None:
        """After each step."""

    def before_eval(self) -> None:
        """Before an evaluation."""

    def before_eval_step(self) -> None:
        """Before each batch of an evaluation."""

    def after_eval_step(self, outputs: Any) -> None:
        """After each batch of an evaluation, with what the model returned."""

    def after_eval(self, results: dict[str, Any]) -> None:
        """After an evaluation, with its results by name; {} if it failed."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain values and tensors; {} for none."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        logger.warning(
            "%s saved a state but has no load_state_dict: it starts without it",
            type(self).__qualname__,
        )
