"""Schedules with a warm-up by detectron2's names, for code that makes them by hand."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

WarmupMethod = Literal["linear", "constant"]


class WarmupMultiStepLR(LambdaLR):
    """The learning rate times `gamma` at each of the milestones, after a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        warmup_factor: float = 0.001,
        warmup_iters: int = 1000,
        warmup_method: WarmupMethod = "linear",
        last_epoch: int = -1,
    ) -> None:
        if list(milestones) != sorted(milestones):
            raise ValueError(f"milestones must rise, got {list(milestones)}")

        def factor(iteration: int) -> float:
            warmup = _get_warmup_factor_at_iter(
                warmup_method, iteration, warmup_iters, warmup_factor
            )
            return warmup * gamma ** bisect_right(milestones, iteration)

        super().__init__(optimizer, factor, last_epoch)


class WarmupCosineLR(LambdaLR):
    """The learning rate falls to 0 at `max_iters` along a cosine, after a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_iters: int,
        warmup_factor: float = 0.001,
        warmup_iters: int = 1000,
        warmup_method: WarmupMethod = "linear",
        last_epoch: int = -1,
    ) -> None:
        def factor(iteration: int) -> float:
            warmup = _get_warmup_factor_at_iter(
                warmup_method, iteration, warmup_iters, warmup_factor
            )
            return warmup * 0.5 * (1.0 + math.cos(math.pi * min(iteration / max_iters, 1.0)))

        super().__init__(optimizer, factor, last_epoch)


def _get_warmup_factor_at_iter(
    method: WarmupMethod, iter: int, warmup_iters: int, warmup_factor: float
) -> float:
    """The factor of an iteration, from `warmup_factor` to 1: at once or in a straight line.

    By detectron2's name, as schedules of users call it.
    """
    if method not in ("linear", "constant"):
        raise ValueError(f"warmup_method is 'linear' or 'constant', got {method!r}")
    if iter >= warmup_iters:
        return 1.0
    progress = iter / warmup_iters if method == "linear" else 0.0
    return warmup_factor + (1.0 - warmup_factor) * progress
