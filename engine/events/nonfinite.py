"""NonFiniteGuard: what happens when a loss becomes NaN or infinite."""

import logging
import math
import weakref
from typing import Literal, NamedTuple, get_args

import torch

from engine.events import scalar
from engine.events.current import get_event_storage
from engine.events.step_metrics import Numbers
from engine.events.storage import EventStorage
from engine.parallel import comm

logger = logging.getLogger(__name__)

NonFinitePolicy = Literal["raise", "skip", "ignore"]
MAX_WAITING = 2_000  # steps that are looked at in one go where nobody reads the storage


class _Step(NamedTuple):
    """A step whose loss is still on its device."""

    iteration: int
    total_loss: torch.Tensor
    losses: Numbers
    bad_ranks: torch.Tensor  # as of `_find_bad_ranks`


class NonFiniteGuard:
    """Raises, or has the step skipped, when the sum of the losses is not finite.

    On the CPU this is known in the very step. On an accelerator no step stops the device: the
    report comes when the storage is read for a writer anyway, and the device itself skips the
    step where the optimizer can do that (`fused=True`); other optimizers have to wait for the sum
    if the policy is "skip".

    To skip a step all ranks must: with several of them, `is_joint` is true under that policy, and
    `allows_step` has to be asked in each step, as it asks all ranks.
    """

    def __init__(self, policy: NonFinitePolicy = "raise") -> None:
        if policy not in get_args(NonFinitePolicy):
            raise ValueError(
                f"the non-finite policy must be one of {get_args(NonFinitePolicy)}, got {policy!r}"
            )
        self.policy = policy
        self.is_joint = policy == "skip" and comm.get_world_size() > 1
        self.may_leave_to_device = True  # to skip a step; else the host waits for the sum
        self.skipped = 0  # steps
        self._skipped_in_a_row = 0
        self._last_skipped = -2
        self._watched: weakref.ref[EventStorage] | None = None
        self._waiting: list[_Step] = []
        self._had_good_step = False

    def allows_step(
        self,
        total_loss: float | torch.Tensor,
        losses: Numbers,
        iteration: int,
        optimizer: torch.optim.Optimizer,
    ) -> bool:
        """Whether the optimizer may step on this sum of losses; raises if the policy says so."""
        if self.policy == "ignore":
            return True
        if scalar.is_deferred(total_loss):
            # In its first step an optimizer makes its state, and must not skip what fills it.
            skips_itself = (
                self.may_leave_to_device and self._had_good_step and can_skip_itself(optimizer)
            )
            if self.policy == "raise" or skips_itself:
                self._leave_to_device(total_loss, losses, iteration, optimizer)  # type: ignore[arg-type]
                return True
        message = find_nonfinite(total_loss, losses, iteration)
        is_bad = bool(message)
        if self.is_joint:
            count, numbers = _find_bad_ranks(torch.as_tensor(total_loss), True).tolist()
            is_bad = count > 0
            message = message or _describe_others(count, numbers, iteration)
        if is_bad:
            self._report(message, iteration)
        self._had_good_step |= not is_bad
        return not is_bad

    def _leave_to_device(
        self,
        total_loss: torch.Tensor,
        losses: Numbers,
        iteration: int,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        bad_ranks = _find_bad_ranks(total_loss, self.is_joint)
        if self.policy == "skip":
            # Optimizers skip where it is 1, not where it is 2.
            optimizer.found_inf = (bad_ranks[0] > 0).float()  # type: ignore[attr-defined]
        self._watch(get_event_storage())
        self._waiting.append(_Step(iteration, total_loss, losses, bad_ranks))
        if len(self._waiting) >= MAX_WAITING:
            self._look_at_waiting()

    def _watch(self, storage: EventStorage) -> None:
        if self._watched is None or self._watched() is not storage:
            self._watched = weakref.ref(storage)
            self._waiting = []
            storage.on_sync(self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        if not self._waiting:
            return
        steps, self._waiting = self._waiting, []  # each is told once, also if that raises
        totals = scalar.fetch([step.total_loss for step in steps])
        bad_ranks = torch.stack([step.bad_ranks for step in steps]).tolist()
        for step, total, (count, numbers) in zip(steps, totals, bad_ranks, strict=True):
            message = find_nonfinite(total, step.losses, step.iteration)
            if message := message or _describe_others(count, numbers, step.iteration):
                self._report(message, step.iteration)

    def _report(self, message: str, iteration: int) -> None:
        if self.policy == "raise":
            raise FloatingPointError(message)
        self.skipped += 1
        is_next = iteration == self._last_skipped + 1
        count = self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_next else 1
        self._last_skipped = iteration
        if count & (count - 1):  # of many in a row the 1st, 2nd, 4th, 8th, …
            return
        in_a_row = f", {count} in a row and {self.skipped} in this run" if count > 1 else ""
        logger.warning("%s; the step is skipped%s", message, in_a_row)


def can_skip_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer leaves out a step where a tensor `found_inf` on its device says so."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def find_nonfinite(total_loss: float | torch.Tensor, losses: Numbers, iteration: int) -> str:
    """What to say of a sum of losses that is NaN or infinite; '' for a finite one."""
    if math.isfinite(total_loss):
        return ""
    values = {name: float(value) for name, value in losses.items()}
    shown = {name: value for name, value in values.items() if not math.isfinite(value)} or values
    listed = ", ".join(f"{name} = {value}" for name, value in shown.items())
    where = f" on rank {comm.get_rank()}" if comm.get_world_size() > 1 else ""
    return f"the loss became infinite or NaN{where} at iteration {iteration}: {listed}"


def _find_bad_ranks(total_loss: torch.Tensor, are_asked: bool) -> torch.Tensor:
    """How many ranks have a sum that is not finite, and the sum of their numbers; of this rank
    alone where others are not asked."""
    is_bad = (~torch.isfinite(total_loss)).float()
    own = torch.stack([is_bad, is_bad * comm.get_rank()])
    return comm.reduce_dict({"bad": own}, average=False)["bad"] if are_asked else own


def _describe_others(count: float, numbers: float, iteration: int) -> str:
    if not count:
        return ""
    who = f"rank {numbers:.0f}" if count == 1 else f"{count:.0f} other ranks"
    return f"the loss of {who} is infinite or NaN at iteration {iteration}"
