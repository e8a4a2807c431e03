"""Learning-rate schedules: a curve over the progress of the run, times each group's own LR."""

from typing import Any

from fvcore.common.param_scheduler import ParamScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from engine.solver.warmup import (
    WarmupCosineLR,
    WarmupMethod,
    WarmupMultiStepLR,
    _get_warmup_factor_at_iter,
)

# As in detectron2.
__all__ = [
    "LRMultiplier",
    "LRScheduler",
    "WarmupCosineLR",
    "WarmupMultiStepLR",
    "WarmupParamScheduler",
    "_get_warmup_factor_at_iter",
]

AHEAD = 100  # iterations whose factors are computed at once


class LRMultiplier(LRScheduler):
    """Set the LR of each group to its initial LR × `multiplier(iteration / max_iter)`.

    `momentum` is a second curve, for each group's momentum (`betas[0]` where there is no
    `momentum`). After `max_iter` the final values stay. A group added to the optimizer later takes
    the LR it comes with as its initial one.

    A curve is a function of the progress and nothing else, so it is asked for many iterations at
    once, and a step costs next to nothing. A subclass with a `get_lr` of its own is asked in each.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        multiplier: ParamScheduler,
        max_iter: int,
        last_iter: int = -1,
        *,
        momentum: ParamScheduler | None = None,
    ):
        # LRScheduler.__init__ is left out on purpose: it wraps optimizer.step in a counter that
        # costs time in every step and guards an order of calls that does not matter here, since
        # the LR depends on the iteration alone.
        for curve in filter(None, (multiplier, momentum)):
            if not isinstance(curve, ParamScheduler):
                raise TypeError(
                    f"LRMultiplier needs fvcore ParamSchedulers, got {type(curve).__name__}; "
                    "a torch scheduler is used as it is, without LRMultiplier"
                )
        if max_iter <= 0:
            raise ValueError(f"max_iter must be at least 1, got {max_iter}")
        if last_iter >= 0 and any("initial_lr" not in group for group in optimizer.param_groups):
            raise KeyError(
                f"last_iter={last_iter} continues a run, but the optimizer's groups lack "
                "'initial_lr': load the optimizer's state first"
            )
        self.optimizer = optimizer
        self.multiplier = multiplier
        self.momentum = momentum
        self.max_iter = max_iter
        self.last_epoch = last_iter
        self.base_lrs: list[float | Tensor] = []
        self.base_momenta: list[float] = []
        self._factors: list[float] = []  # of the iterations from `_first` on
        self._first = 0
        self.step()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set_values()

    def get_lr(self) -> list[float | Tensor]:
        factor = value_at(self.multiplier, self.last_epoch / self.max_iter)
        return [base * factor for base in self.base_lrs]

    def get_last_lr(self) -> list[float | Tensor]:
        lrs = (group["lr"] for group in self.optimizer.param_groups)
        return [lr.clone() if isinstance(lr, Tensor) else lr for lr in lrs]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}
        if self.momentum is not None:
            state["base_momenta"] = list(self.base_momenta)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups, saved = len(self.optimizer.param_groups), len(state_dict["base_lrs"])
        if groups != saved:
            raise ValueError(
                f"the saved schedule has {saved} parameter groups, the optimizer has {groups}: "
                "build the optimizer with the rules of the saved run"
            )
        self.base_lrs = list(state_dict["base_lrs"])
        self.base_momenta = list(state_dict.get("base_momenta", self.base_momenta))
        self.last_epoch = state_dict["last_epoch"]
        self._set_values()

    def _set_values(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) > len(self.base_lrs):
            for group in groups[len(self.base_lrs) :]:
                self.base_lrs.append(float(group.setdefault("initial_lr", float(group["lr"]))))
        if type(self).get_lr is LRMultiplier.get_lr:
            self._set_lrs()
        else:
            for group, lr in zip(groups, self.get_lr(), strict=True):
                group["lr"] = _put(group["lr"], lr)
        if self.momentum is not None:
            self._set_momenta(value_at(self.momentum, self.last_epoch / self.max_iter))

    def _set_lrs(self) -> None:
        place = self.last_epoch - self._first
        if not 0 <= place < len(self._factors):
            self._compute_factors()
            place = 0
        factor = self._factors[place]
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            if type(group["lr"]) is float:
                group["lr"] = base * factor
            else:
                group["lr"] = _put(group["lr"], base * factor)

    def _compute_factors(self) -> None:
        self._first = self.last_epoch
        end = max(min(self._first + AHEAD, self.max_iter), self._first + 1)
        self._factors = [
            value_at(self.multiplier, iteration / self.max_iter)
            for iteration in range(self._first, end)
        ]

    def _set_momenta(self, factor: float) -> None:
        groups = self.optimizer.param_groups
        for group in groups[len(self.base_momenta) :]:
            self.base_momenta.append(float(group.setdefault("initial_momentum", _momentum(group))))
        for group, base in zip(groups, self.base_momenta, strict=True):
            momentum = _put(_momentum(group), base * factor)
            if "momentum" in group:
                group["momentum"] = momentum
            else:
                group["betas"] = (momentum, *group["betas"][1:])


class WarmupParamScheduler(ParamScheduler):
    """Start `scheduler` with a warm-up over the first `warmup_length` (a share of the run).

    It begins at `warmup_factor` × the schedule's first value and meets the schedule exactly where
    it ends. With `rescale_interval` the whole schedule is squeezed into what remains; without,
    the warm-up covers its first part.
    """

    def __init__(
        self,
        scheduler: ParamScheduler,
        warmup_factor: float,
        warmup_length: float,
        warmup_method: WarmupMethod = "linear",
        rescale_interval: bool = False,
    ):
        if warmup_method not in ("linear", "constant"):
            raise ValueError(f"warmup_method must be linear or constant, got {warmup_method!r}")
        if not 0 <= warmup_length <= 1:
            raise ValueError(f"warmup_length is a share of the run, 0 to 1; got {warmup_length}")
        self.scheduler = scheduler
        self.warmup_length = warmup_length
        self.warmup_method = warmup_method
        self.rescale_interval = rescale_interval
        self.start_value = warmup_factor * scheduler(0.0)
        self.end_value = value_at(scheduler, 0.0 if rescale_interval else warmup_length)

    def __call__(self, where: float) -> float:
        if where < self.warmup_length:
            if self.warmup_method == "constant":
                return self.start_value
            done = where / self.warmup_length
            return self.start_value + done * (self.end_value - self.start_value)
        if self.rescale_interval:
            rest = 1 - self.warmup_length
            where = (where - self.warmup_length) / rest if rest else 0.0
        return value_at(self.scheduler, where)


def value_at(scheduler: ParamScheduler, where: float) -> float:
    """The schedule's value at `where`, and its final value at and after the end."""
    try:
        return scheduler(where if where < 1.0 else 1.0)
    except (RuntimeError, IndexError):
        # Some of fvcore's schedules refuse 1.0 and what they round up to it.
        nearly_one = 1.0 - 2 * ParamScheduler.WHERE_EPSILON
        if where <= nearly_one:
            raise
        return scheduler(nearly_one)


def _put(old: float | Tensor, new: float | Tensor) -> float | Tensor:
    # A tensor stays the same object: a captured or compiled step holds on to it.
    return old.fill_(new) if isinstance(old, Tensor) else new


def _momentum(group: dict[str, Any]) -> float | Tensor:
    if "momentum" in group:
        return group["momentum"]
    if "betas" in group:
        return group["betas"][0]
    raise ValueError(
        "a momentum schedule needs an optimizer with momentum or betas; its groups have "
        f"{', '.join(key for key in group if key != 'params')}"
    )
