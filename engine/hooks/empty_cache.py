"""EmptyCacheHook: gives cached memory of the accelerator back."""

import torch

from engine.hooks.base import HookBase, Priority
from engine.utils.periods import is_due, read_period


class EmptyCacheHook(HookBase):
    """Frees the memory of the accelerator that torch holds but does not use.

    That is for others on the device, or against fragmentation; it costs time, as torch has to ask
    for the memory again. On a CPU it does nothing.
    """

    priority = Priority.LOWEST  # what other hooks let go at the same point is freed too

    def __init__(
        self, before_epoch: bool = False, after_epoch: bool = True, after_step: int | str = 0
    ) -> None:
        self._before_epoch = before_epoch
        self._after_epoch = after_epoch
        self._period = read_period(after_step)

    def before_epoch(self) -> None:
        if self._before_epoch:
            empty_cache()

    def after_step(self) -> None:
        if is_due(self._period, self.trainer):
            empty_cache()

    def after_epoch(self) -> None:
        if self._after_epoch:
            empty_cache()


def empty_cache() -> None:
    """Free the cached memory of whatever accelerator there is."""
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use; so does the next
    torch.xpu.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
