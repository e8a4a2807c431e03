"""SimpleTrainer: the loop with the usual step."""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import nn

from engine.config.errors import ConfigError
from engine.events import get_event_storage
from engine.events.nonfinite import NonFiniteGuard, NonFinitePolicy, find_nonfinite
from engine.events.step_metrics import (
    Metrics,
    find_unfit_loss,
    losses_among,
    mean_of,
    put_step_metrics,
    total_loss,
)
from engine.parallel import comm
from engine.parallel.fsdp import shard_optimizer_state
from engine.parallel.strategy import no_gradient_sync
from engine.solver import torch_calls
from engine.solver.gradient_clipping import leave_clipping_to_trainer
from engine.solver.optimizer import load_optimizer_state, trained_names
from engine.train_loop import TrainerBase
from engine.utils.default_property import default_property
from engine.utils.endless import EndlessIterator, batches_per_epoch

logger = logging.getLogger(__name__)


class SimpleTrainer(TrainerBase):
    """One model, one optimizer, one data loader, and nothing else.

    A step takes a batch, calls `model(batch)`, and minimises what comes back: one loss, or a dict
    whose values that require grad are summed. Other values in the dict are metrics: they are
    stored, not minimised. For anything else, override `run_step`.

    `data_loader` is started again when it ends. The options of a step:

    - `gather_metric_period`: store the metrics of every so many steps;
    - `zero_grad_before_forward`: clear gradients before the forward pass, not after it;
    - `accumulate`: average the gradients of so many batches in one step, so that one iteration
      is always one step of the optimizer;
    - `clip_gradients`: called with the optimizer before its step; what it returns is stored as
      `grad_norm` (`engine.solver.GradientClipper`);
    - `nonfinite`: "raise", "skip" (the step) or "ignore" when a loss is NaN or infinite.

    `async_write_metrics` is taken for code that passes it: no step ever waits for a metric.
    """

    # What a subclass with a constructor of its own, as for detectron2, need not set.
    gather_metric_period = 1
    zero_grad_before_forward = False
    async_write_metrics = False
    accumulate = 1
    clip_gradients: Callable[[torch.optim.Optimizer], torch.Tensor] | None = None
    _data_loader: Iterable[Any] = ()
    _batches_per_epoch: int | None = None
    _data_loader_iter_obj: Iterator[Any] | None = None
    _backward_start = 0.0
    _backward_end = 0.0  # of the step before; 0 before the first
    _busy_time: float | None = None  # from there to the next backward pass, but for the data

    def __init__(
        self,
        model: nn.Module,
        data_loader: Iterable[Any],
        optimizer: torch.optim.Optimizer,
        gather_metric_period: int = 1,
        zero_grad_before_forward: bool = False,
        async_write_metrics: bool = False,
        *,
        accumulate: int = 1,
        clip_gradients: Callable[[torch.optim.Optimizer], torch.Tensor] | None = None,
        nonfinite: NonFinitePolicy = "raise",
    ) -> None:
        super().__init__()
        if clip_gradients is not None and not callable(clip_gradients):
            raise TypeError(
                f"clip_gradients is called with the optimizer, got {clip_gradients!r}; "
                f"try engine.solver.GradientClipper({clip_gradients!r})"
            )
        if min(gather_metric_period, accumulate) < 1:
            raise ValueError(
                "gather_metric_period and accumulate must be at least 1, "
                f"got {gather_metric_period} and {accumulate}"
            )
        model.train()
        self.model = model
        self.data_loader = data_loader
        self.optimizer = optimizer
        self.gather_metric_period = gather_metric_period
        self.zero_grad_before_forward = zero_grad_before_forward
        self.async_write_metrics = async_write_metrics
        self.accumulate = accumulate
        self.clip_gradients = clip_gradients
        self.nonfinite = NonFiniteGuard(nonfinite)

    def run_step(self) -> None:
        """Forward, backward, and one step of the optimizer, as the class doc says."""
        if not self.model.training:
            raise RuntimeError(
                f"{type(self).__name__}: the model is in eval mode; "
                "call model.train() after whatever switched it"
            )
        if self.accumulate == 1:
            metrics, data_time = self._run_batch()
        else:
            metrics, data_time = self._run_batches()
        if self._has_other_ranks:  # they wait for each other in backward passes
            self._busy_time = self._backward_start - self._backward_end - data_time
            self._backward_end = perf_counter()
        self.after_backward()
        # False says that the loss is not finite and the policy is to skip such steps.
        if self._write_metrics(metrics, data_time) is not False:
            self._step_optimizer()  # to change the gradients, use after_backward

    def _run_batch(self, is_first: bool = True) -> tuple[Metrics, float]:
        """Forward and backward of one batch; returns what the model gave and the time to load."""
        if is_first and self.zero_grad_before_forward:
            torch_calls.zero_grad(self.optimizer)
        start = perf_counter()
        # To change the data, wrap the data loader.
        data = next(self._data_loader_iter)
        data_time = perf_counter() - start
        self._backward_end = self._backward_end or start
        metrics = self._forward(data)  # to change the losses, wrap the model
        loss = total_loss(metrics)
        if is_first and not self.zero_grad_before_forward:
            torch_calls.zero_grad(self.optimizer)
        self._backward_start = perf_counter()
        try:
            self._backward(loss if self.accumulate == 1 else loss / self.accumulate)
        except (RuntimeError, AttributeError, TypeError) as error:
            if problem := find_unfit_loss(metrics):
                raise TypeError(f"{type(self.model).__name__} returned {problem}") from error
            raise
        return metrics, data_time

    def _run_batches(self) -> tuple[Metrics, float]:
        parts: list[tuple[Metrics, float]] = []
        for left in reversed(range(self.accumulate)):
            # Only the last batch of a step sends gradients to other ranks.
            with no_gradient_sync(self.model) if left else nullcontext():
                parts.append(self._run_batch(is_first=not parts))
        return mean_of([metrics for metrics, _ in parts]), sum(seconds for _, seconds in parts)

    def reset_data_loader(self, data_loader_builder: Callable[[], Iterable[Any]]) -> None:
        """Drop the data loader, then take the one that the function builds."""
        self.data_loader = ()  # frees the old loader before the new one needs its memory
        self.data_loader = data_loader_builder()
        self.start_data_at(self.next_iter)

    def before_train(self) -> None:
        self.begin_data_at(self.start_iter)
        super().before_train()

    def start_data_at(self, iteration: int) -> None:
        """Have a loader that can start anywhere (`start_at`) give the batches of this iteration."""
        if hasattr(self.data_loader, "start_at"):
            self.data_loader.start_at(iteration * self.accumulate)
            self._data_loader_iter_obj = None

    def begin_data_at(self, iteration: int) -> None:
        """Where a run begins: `start_data_at`, with a warning if the loader begins anew."""
        self._backward_end = 0.0
        self.start_data_at(iteration)
        has_place = any(hasattr(self.data_loader, one) for one in ("start_at", "load_state_dict"))
        is_given = self.data_loader is not SimpleTrainer._data_loader
        if iteration > 0 and is_given and not has_place and self._data_loader_iter_obj is None:
            logger.warning(
                "The data loader (%s) has no start_at(iteration): its data begin anew",
                type(self.data_loader).__name__,
            )

    def end_data(self) -> None:
        """End the workers of a loader that can start anywhere: left to the garbage collector, each
        would hold up for seconds whatever the process does then."""
        if hasattr(self.data_loader, "start_at"):
            self._data_loader_iter_obj = None

    @default_property
    def epoch_length(self) -> float | None:
        """Iterations in an epoch; None where the data loader has no length."""
        return self._batches_per_epoch and self._batches_per_epoch / self.accumulate

    def epoch_of(self, iteration: int) -> int | None:
        if self._batches_per_epoch is None:
            return None
        return iteration * self.accumulate // self._batches_per_epoch

    @property
    def data_loader(self) -> Iterable[Any]:
        """The source of batches; setting it starts the new one at the next step."""
        return self._data_loader

    @data_loader.setter
    def data_loader(self, data_loader: Iterable[Any]) -> None:
        self._data_loader = data_loader
        self._batches_per_epoch = batches_per_epoch(data_loader)
        self._data_loader_iter_obj = None

    @data_loader.deleter
    def data_loader(self) -> None:
        self.data_loader = ()

    @property
    def _data_loader_iter(self) -> Iterator[Any]:
        if self._data_loader_iter_obj is None:
            self._data_loader_iter_obj = EndlessIterator(self._data_loader)
        return self._data_loader_iter_obj

    @_data_loader_iter.setter
    def _data_loader_iter(self, batches: Iterator[Any]) -> None:
        self._data_loader_iter_obj = EndlessIterator(batches)

    @cached_property
    def _has_other_ranks(self) -> bool:
        return comm.get_world_size() > 1

    @cached_property
    def nonfinite(self) -> NonFiniteGuard:
        return NonFiniteGuard()

    @cached_property
    def concurrent_executor(self) -> ThreadPoolExecutor:
        """A thread in which `get_event_storage()` finds the run's storage, for code that has its
        metrics written there, as detectron2 does; ours needs none."""
        return ThreadPoolExecutor(1, initializer=self.storage.__enter__)

    def after_train(self) -> None:
        if executor := vars(self).pop("concurrent_executor", None):
            executor.shutdown()
        super().after_train()
        self.end_data()

    @staticmethod
    def write_metrics(
        loss_dict: Metrics, data_time: float, cur_iter: int | str | None = None, prefix: str = ""
    ) -> None:
        """Store the metrics of a step of your own; raises if a loss is NaN or infinite.

        They are of the current iteration unless `cur_iter` says otherwise. (In detectron2 0.6 the
        prefix has its place.)
        """
        if isinstance(cur_iter, str):
            return SimpleTrainer.write_metrics(loss_dict, data_time, prefix=cur_iter)
        iteration = get_event_storage().iter if cur_iter is None else cur_iter
        total, numbers = put_step_metrics(loss_dict, data_time, iteration, prefix)
        error = find_nonfinite(total, losses_among(loss_dict, numbers), iteration)
        if error:
            raise FloatingPointError(error)

    def _write_metrics(
        self, loss_dict: Metrics, data_time: float, prefix: str = "", iter: int | None = None
    ) -> bool:
        """Store the metrics where the period says so; False if the step is to be skipped."""
        iteration = (self._outer or self).iter if iter is None else iter
        is_stored = (iteration + 1) % self.gather_metric_period == 0
        busy_time, self._busy_time = self._busy_time, None
        total, numbers = put_step_metrics(
            loss_dict, data_time, iteration, prefix, is_stored, busy_time
        )
        if type(total) is float and isfinite(total) and not self.nonfinite.is_joint:
            return True
        losses = losses_among(loss_dict, numbers)
        return self.nonfinite.allows_step(total, losses, iteration, self.optimizer)

    def _forward(self, data: Any) -> Metrics:
        output = self.model(data)
        if type(output) is dict and output:
            return output
        if isinstance(output, torch.Tensor):
            return {"total_loss": output}
        if not output or not hasattr(output, "items"):
            raise TypeError(
                f"{type(self.model).__name__} returned {output!r:.80} in training mode; "
                "expected a loss or a dict of losses"
            )
        return output

    def _backward(self, loss: torch.Tensor) -> None:
        torch_calls.backward(loss)

    def _step_optimizer(self) -> None:
        if self.clip_gradients is not None:
            self._clip(self.clip_gradients)
        torch_calls.step(self.optimizer)
        if self.nonfinite.policy == "skip":
            vars(self.optimizer).pop("found_inf", None)  # it was about this step only

    def _clip(self, clip_gradients: Callable[[torch.optim.Optimizer], torch.Tensor]) -> None:
        leave_clipping_to_trainer(self.optimizer)
        get_event_storage().put_scalar("grad_norm", clip_gradients(self.optimizer))

    def state_dict(self) -> dict[str, Any]:
        state = {
            **super().state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "trained": trained_names(self.model, self.optimizer),
        }
        if hasattr(self.data_loader, "state_dict"):
            state["data_loader"] = self.data_loader.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "optimizer" not in state_dict:
            raise ConfigError(
                f"the checkpoint was saved by another kind of trainer: its state has no optimizer, "
                f"but {', '.join(state_dict)}"
            )
        state = state_dict["optimizer"]
        has_form_of_torch = state.keys() >= {"state", "param_groups"}
        if isinstance(self.optimizer, torch.optim.Optimizer) and has_form_of_torch:
            state = shard_optimizer_state(state, self.optimizer)
            trained = trained_names(self.model, self.optimizer)
            pairs = zip(state_dict.get("trained", trained), trained, strict=False)
            renamed = {was: is_now for was, is_now in pairs if was != is_now}
            load_optimizer_state(self.optimizer, state, renamed)
        else:  # one of the user's own, as around others, knows what its state is
            self.optimizer.load_state_dict(state)
        super().load_state_dict(state_dict)  # then a schedule sets the LR, which may be another now
        if hasattr(self.data_loader, "load_state_dict") and "data_loader" in state_dict:
            self.data_loader.load_state_dict(state_dict["data_loader"])
            self._data_loader_iter_obj = None

    def _loader_with_state(self) -> Any:
        loader = self.data_loader
        has_state = all(hasattr(loader, name) for name in ("state_dict", "load_state_dict"))
        return loader if has_state and not hasattr(loader, "start_at") else None
