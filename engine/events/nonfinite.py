"""NonFiniteGuard: what happens when a loss becomes NaN or infinite."""

import logging
import math
import weakref
from typing import Literal, get_args

import torch

from engine.events import scalar
from engine.events.step_metrics import Metrics
from engine.events.storage import EventStorage, get_event_storage

logger = logging.getLogger(__name__)

NonFinitePolicy = Literal["raise", "skip", "ignore"]


class NonFiniteGuard:
    """Raises, or has the step skipped, when the sum of the losses is not finite.

    On the CPU this is known in the very step. On an accelerator no step stops the device: the
    report comes when the losses are fetched for a writer anyway, and the device itself skips the
    step where the optimizer can do that (`fused=True`); other optimizers have to wait for the sum
    if the policy is "skip".
    """

    def __init__(self, policy: NonFinitePolicy = "raise") -> None:
        if policy not in get_args(NonFinitePolicy):
            raise ValueError(
                f"the non-finite policy must be one of {get_args(NonFinitePolicy)}, got {policy!r}"
            )
        self.policy = policy
        self._watched: weakref.ref[EventStorage] | None = None
        self._had_good_step = False

    def allows_step(
        self,
        total_loss: float | torch.Tensor,
        values: Metrics,
        iteration: int,
        optimizer: torch.optim.Optimizer,
    ) -> bool:
        """Whether the optimizer may step on this sum of losses; raises if the policy says so."""
        if self.policy == "ignore":
            return True
        if scalar.is_deferred(total_loss):
            # In its first step an optimizer makes its state, and must not skip what fills it.
            skips_itself = self._had_good_step and can_skip_itself(optimizer)
            if self.policy == "raise" or skips_itself:
                self._watch(get_event_storage())
                if self.policy == "skip":
                    is_bad = ~torch.isfinite(total_loss)  # type: ignore[arg-type]
                    optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]
                return True
        message = find_nonfinite(total_loss, values, iteration)
        if message:
            self._report(message)
        self._had_good_step |= not message
        return not message

    def _watch(self, storage: EventStorage) -> None:
        if self._watched is None or self._watched() is not storage:
            self._watched = weakref.ref(storage)
            storage.on_converted(self._check_converted)

    def _check_converted(self, converted: list[tuple[str, float, int]]) -> None:
        bad_totals = [
            iteration
            for name, value, iteration in converted
            if name.endswith("total_loss") and not math.isfinite(value)
        ]
        for iteration in sorted(set(bad_totals)):
            values = {name: value for name, value, at in converted if at == iteration}
            self._report(_describe(values, iteration))

    def _report(self, message: str) -> None:
        if self.policy == "raise":
            raise FloatingPointError(message)
        logger.warning("%s; the step is skipped", message)


def can_skip_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer leaves out a step where a tensor `found_inf` on its device says so."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def find_nonfinite(total_loss: float | torch.Tensor, values: Metrics, iteration: int) -> str:
    """What to say of a sum of losses that is NaN or infinite; '' for a finite one."""
    if math.isfinite(total_loss):
        return ""
    numbers = {name: float(scalar.as_scalar(name, value)) for name, value in values.items()}
    return _describe(numbers, iteration)


def _describe(values: dict[str, float], iteration: int) -> str:
    shown = {name: value for name, value in values.items() if not math.isfinite(value)} or values
    listed = ", ".join(f"{name} = {value}" for name, value in shown.items())
    return f"the loss became infinite or NaN at iteration {iteration}: {listed}"
