"""Learning-rate and momentum schedules from a config."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fvcore.common.config import CfgNode
from fvcore.common.param_scheduler import (
    CompositeParamScheduler,
    ConstantParamScheduler,
    CosineParamScheduler,
    MultiStepParamScheduler,
    ParamScheduler,
    StepWithFixedGammaParamScheduler,
)
from torch.optim import Optimizer

from engine.config import ConfigError, naming
from engine.solver.lr_scheduler import LRMultiplier, WarmupParamScheduler
from engine.utils.lengths import to_iterations
from engine.utils.registry import Registry, find
from engine.utils.suggest import hint_at

logger = logging.getLogger(__name__)

SCHEDULE_REGISTRY = Registry("SCHEDULE")
"""Schedules of your own, for SOLVER.LR_SCHEDULER_NAME: functions of the SOLVER node and the number
of iterations that return a ParamScheduler."""


def build_lr_scheduler(cfg: CfgNode, optimizer: Optimizer) -> LRMultiplier:
    """The schedule that `SOLVER` describes, with its warm-up, and that of the momentum if any.

    A config with lengths in epochs goes through `lengths_in_iterations` first.
    """
    solver, momentum = cfg.SOLVER, cfg.SOLVER.MOMENTUM_SCHEDULE
    with naming("SOLVER.MAX_ITER"):
        max_iter = to_iterations(solver.MAX_ITER)
    if max_iter < 1:
        raise ConfigError(f"SOLVER.MAX_ITER must be at least 1, got {solver.MAX_ITER!r}")
    lr_curve = _Settings(solver, max_iter).build("SOLVER.LR_SCHEDULER_NAME")
    highest = max(lr_curve(place / 200) for place in range(200))
    if highest < 0.5:
        message = "The learning rate never exceeds %.2g × BASE_LR in this run of %d iterations"
        logger.warning(message, highest, max_iter)
    momentum_curve = None
    if momentum.NAME:
        momentum_curve = _Settings(momentum, max_iter).build("SOLVER.MOMENTUM_SCHEDULE.NAME")
    return LRMultiplier(optimizer, lr_curve, max_iter, momentum=momentum_curve)


class PolyParamScheduler(ParamScheduler):
    """Fall from 1 to `end_value` as `(1 - where) ** power`."""

    def __init__(self, power: float, end_value: float):
        self.power = power
        self.end_value = end_value

    def __call__(self, where: float) -> float:
        return self.end_value + (1 - self.end_value) * (1 - where) ** self.power


@dataclass(frozen=True)
class _Settings:
    """`SOLVER` or `SOLVER.MOMENTUM_SCHEDULE`, read only where a curve needs it.

    So a key that the chosen schedule has no use for stays unread, and start-up can say so.
    """

    node: CfgNode
    max_iter: int

    def build(self, key: str) -> ParamScheduler:
        """The schedule that the key names."""
        curve = self._curve(key, self.node[key.rpartition(".")[2]])
        warmup_iters = to_iterations(self.node.WARMUP_ITERS)
        if warmup_iters <= 0:
            return curve
        if warmup_iters >= self.max_iter:
            shorter = max(self.max_iter // 10, 1)
            message = "WARMUP_ITERS is %d and the run ends at %d: the warm-up is shortened to %d"
            logger.warning(message, warmup_iters, self.max_iter, shorter)
            warmup_iters = shorter
        return WarmupParamScheduler(
            curve,
            self.start,
            min(warmup_iters / self.max_iter, 1.0),
            self.node.WARMUP_METHOD,
            self.node.RESCALE_INTERVAL,
        )

    def _curve(self, key: str, name: str) -> ParamScheduler:
        if name in SCHEDULES:
            return SCHEDULES[name](self)
        if name in SCHEDULE_REGISTRY or ":" in name or "." in name:
            with naming(key):
                make = find(SCHEDULE_REGISTRY, name)
            return make(self.node, self.max_iter)
        known = [*SCHEDULES, *dict(SCHEDULE_REGISTRY)]
        raise ConfigError(
            f"{key}: unknown schedule {name!r}{hint_at(name, known)} (known: {', '.join(known)})"
        )

    @property
    def start(self) -> float:
        if self.node.get("WARMUP_START_LR") is None:
            return self.node.WARMUP_FACTOR
        return self._share_of_base_lr("WARMUP_START_LR")

    @property
    def end(self) -> float:
        return self.node.END if "END" in self.node else self._share_of_base_lr("BASE_LR_END")

    @property
    def steps(self) -> list[int]:
        """The steps that come before the end of the run."""
        steps = [to_iterations(step) for step in self.node.STEPS]
        if [0, *steps] != sorted({0, *steps}):
            raise ConfigError(f"STEPS must be above 0 and rise, got {steps}")
        kept = [step for step in steps if step < self.max_iter]
        if len(kept) < len(steps):
            message = "STEPS %s have no effect: the run ends at iteration %d"
            logger.warning(message, steps[len(kept) :], self.max_iter)
        return kept

    def _share_of_base_lr(self, key: str) -> float:
        lr, base_lr = self.node[key], self.node.BASE_LR
        if not (lr == 0 or 0 < lr <= base_lr):
            raise ConfigError(f"SOLVER.{key} must be from 0 to BASE_LR ({base_lr}), got {lr}")
        return lr / base_lr if lr else 0.0


def _constant(settings: _Settings) -> ParamScheduler:
    return ConstantParamScheduler(1.0)


def _multi_step(settings: _Settings) -> ParamScheduler:
    steps = settings.steps
    values = [settings.node.GAMMA**i for i in range(len(steps) + 1)]
    return MultiStepParamScheduler(values, num_updates=settings.max_iter, milestones=steps)


def _step_with_fixed_gamma(settings: _Settings) -> ParamScheduler:
    node = settings.node
    return StepWithFixedGammaParamScheduler(1.0, node.NUM_DECAYS, node.GAMMA, settings.max_iter)


def _cosine(settings: _Settings) -> ParamScheduler:
    return CosineParamScheduler(1.0, settings.end)


def _poly(settings: _Settings) -> ParamScheduler:
    return PolyParamScheduler(settings.node.POWER, settings.end)


def _step_cosine(settings: _Settings) -> ParamScheduler:
    """Steps, but from the last one on a cosine, which starts at the value reached by then."""
    steps = settings.steps
    if not steps:
        return _cosine(settings)
    *steps, last = steps
    values = [settings.node.GAMMA**i for i in range(len(steps) + 1)]
    stepped = MultiStepParamScheduler(values, num_updates=last, milestones=steps)
    cosine = CosineParamScheduler(values[-1], settings.end)
    share = last / settings.max_iter
    return CompositeParamScheduler([stepped, cosine], [share, 1 - share], ["rescaled"] * 2)


SCHEDULES: dict[str, Callable[[_Settings], ParamScheduler]] = {
    "WarmupMultiStepLR": _multi_step,
    "WarmupCosineLR": _cosine,
    "WarmupStepWithFixedGammaLR": _step_with_fixed_gamma,
    "WarmupPolyLR": _poly,
    "WarmupStepCosineLR": _step_cosine,
    "WarmupConstantLR": _constant,
}
