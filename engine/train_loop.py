"""The loop: TrainerBase with hooks around any step, SimpleTrainer and AMPTrainer with the usual."""

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import nn

from engine.events import EventStorage, get_event_storage
from engine.events.nonfinite import NonFiniteGuard, NonFinitePolicy, find_nonfinite
from engine.events.step_metrics import (
    Metrics,
    mean_of,
    put_step_metrics,
    total_loss,
)
from engine.hooks.base import HookBase
from engine.hooks.hook_list import HookList, attach_error
from engine.utils.cpu_bfloat16 import has_working_bfloat16_kernels, without_onednn
from engine.utils.endless import EndlessIterator, batches_per_epoch

logger = logging.getLogger(__name__)


class TrainerBase:
    """A loop with hooks around each step. It assumes nothing about what a step is.

    Subclass it and write `run_step`, or use SimpleTrainer for the common case of one model, one
    optimizer and one data loader.

    `iter` is the number of the current step, from 0; after a run that went to its end it is
    `max_iter`. `storage` is the run's EventStorage, readable also after the run.
    """

    def __init__(self) -> None:
        self.iter = 0
        self.start_iter = 0
        self.max_iter = 0
        self.storage: EventStorage
        self.failed = False
        self.stop_reasons: list[str] = []
        self._hook_list = HookList()
        self._is_training = False
        self._iter_is_ahead = False  # `iter` is begun or next, but not finished
        self._outer: TrainerBase | None = None  # the trainer whose run_step calls this one's
        self._saved_storage: dict | None = None

    # --- the loop ---------------------------------------------------------------------------

    def train(self, start_iter: int, max_iter: int) -> None:
        """Run the steps `start_iter` to `max_iter - 1`, with all hooks.

        Whatever fails, the `after_train` of every hook that was started runs, and the first error
        is the one that comes out. May be called again; with nothing left to train no hook runs.
        """
        self._prepare(start_iter, max_iter)
        if start_iter == max_iter:
            logger.info("Nothing to train: iteration %d of %d is reached", start_iter, max_iter)
            return
        logger.info("Starting training from iteration %d", start_iter)
        with self.storage:
            try:
                self.before_train()
                while self.iter < self.max_iter and not self._is_stopped():
                    self.before_step()
                    self.run_step()
                    self.after_step()
                    self.iter += 1
                self._iter_is_ahead = True
                self.storage.sync()  # a loss that no writer asked for may be a NaN
            except BaseException as error:  # KeyboardInterrupt and SystemExit too
                self._end_failed_run(error)
                raise
            self.after_train()

    def run_step(self) -> None:
        """Do one step."""
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    def stop(self, reason: str) -> None:
        """End the run after the current step. What belongs to a regular end still happens."""
        self.stop_reasons.append(reason)
        logger.info("Stopping after iteration %d: %s", self.iter, reason)

    def epoch_of(self, iteration: int) -> int | None:
        """The epoch that an iteration begins in, from 0; None where epochs have no known length."""
        inner = self._inner_trainer()
        return inner.epoch_of(iteration) if inner else None

    @property
    def epoch_length(self) -> float | None:
        """Iterations in an epoch; None where that is not known."""
        inner = self._inner_trainer()
        return inner.epoch_length if inner else None

    # --- the points: each calls the hooks ---------------------------------------------------

    def before_train(self) -> None:
        self._is_training = True
        self._link_inner(weakref.proxy(self))
        self._hook_list.start()

    def after_train(self) -> None:
        self._is_training = False
        self._link_inner(None)
        self.storage.iter = self.iter
        self._hook_list.finish()

    def before_step(self) -> None:
        self._iter_is_ahead = True
        self.storage.iter = self.iter
        hooks = self._hook_list
        if hooks.calls["before_epoch"] and self._begins_epoch():
            hooks.run("before_epoch")
        if hooks.calls["before_step"]:
            hooks.run("before_step")

    def after_backward(self) -> None:
        if self._hook_list.calls["after_backward"]:
            self._hook_list.run("after_backward")
        if self._outer is not None:
            self._outer.after_backward()

    def after_step(self) -> None:
        self._iter_is_ahead = False
        hooks = self._hook_list
        if hooks.calls["after_step"]:
            hooks.run("after_step")
        if hooks.calls["after_epoch"] and self._ends_epoch():
            hooks.run("after_epoch")

    def before_eval(self) -> None:
        self._hook_list.run("before_eval")

    def before_eval_step(self) -> None:
        self._hook_list.run("before_eval_step")

    def after_eval_step(self, outputs: Any) -> None:
        self._hook_list.run("after_eval_step", outputs)

    def after_eval(self, results: dict[str, Any]) -> None:
        self._hook_list.run("after_eval", results)

    # --- hooks and state --------------------------------------------------------------------

    def register_hooks(
        self, hooks: Sequence[HookBase | None], priority: int | str | None = None
    ) -> None:
        """Add hooks; None is passed over. They run by priority, then in the order of adding.

        `priority` overrides that of the hooks' classes. A hook added in the middle of a run gets
        its `before_train` at once, and joins at the next point.
        """
        added = [hook for hook in hooks if hook is not None]
        self._hook_list.add(added, priority)
        for hook in added:
            # A strong reference would be a cycle: trainer and model would outlive their last use.
            hook.trainer = weakref.proxy(self)
        if self._is_training:
            for hook in added:
                self._hook_list.start_late(hook)

    @property
    def _hooks(self) -> list[HookBase]:
        return self._hook_list.hooks

    @_hooks.setter
    def _hooks(self, hooks: list[HookBase]) -> None:
        self._hook_list.hooks = hooks

    def state_dict(self) -> dict[str, Any]:
        """The last finished iteration, the states of the hooks, and that of the storage."""
        state: dict[str, Any] = {"iteration": self.iter - self._iter_is_ahead}
        if hooks := self._hook_list.state_dict():
            state["hooks"] = hooks
        if "storage" in vars(self):
            state["storage"] = self.storage.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back a state; `iter` is then the last finished iteration, so go on from the next."""
        self.iter, self._iter_is_ahead = state_dict["iteration"], False
        self._hook_list.load_state_dict(state_dict.get("hooks", {}))
        self._saved_storage = state_dict.get("storage")

    def _prepare(self, start_iter: int, max_iter: int) -> None:
        if not 0 <= start_iter <= max_iter:
            raise ValueError(
                f"train({start_iter}, {max_iter}): start_iter must be between 0 and max_iter; "
                "raise max_iter to train a finished run further"
            )
        self.storage = EventStorage(start_iter)
        if self._saved_storage and start_iter == self.iter + 1:
            self.storage.load_state_dict(self._saved_storage)
        self._saved_storage = None
        self.iter = self.start_iter = start_iter
        self.max_iter = max_iter
        self.failed = False
        self.stop_reasons = []
        self._iter_is_ahead = True

    def _end_failed_run(self, error: BaseException) -> None:
        self.failed = True
        if isinstance(error, Exception):
            logger.exception("Exception during training, at iteration %d:", self.iter)
        else:
            logger.warning("%s at iteration %d", type(error).__name__, self.iter)
        try:
            self.after_train()
        except BaseException as later:  # an impatient second Ctrl-C too
            attach_error(error, later)

    def _is_stopped(self) -> bool:
        if self.storage.early_stop and not self.stop_reasons:
            self.stop("storage.early_stop was set")
        return bool(self.stop_reasons)

    def _begins_epoch(self) -> bool:
        epoch = self.epoch_of(self.iter)
        if epoch is None:
            return False
        return self.iter == self.start_iter or epoch != self.epoch_of(self.iter - 1)

    def _ends_epoch(self) -> bool:
        return self.epoch_of(self.iter) != self.epoch_of(self.iter + 1)

    def _link_inner(self, outer: "TrainerBase | None") -> None:
        if inner := self._inner_trainer():
            inner._outer = outer
            inner._link_inner(outer and weakref.proxy(inner))

    def _inner_trainer(self) -> "TrainerBase | None":
        # The type is asked, not the instance: a weak proxy to the outer trainer is none of ours.
        return next((t for t in vars(self).values() if issubclass(type(t), TrainerBase)), None)


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
        self._iterator: EndlessIterator | None = None
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
        self.after_backward()
        # False says that the loss is not finite and the policy is to skip such steps.
        if self._write_metrics(metrics, data_time) is not False:
            self._step_optimizer()  # to change the gradients, use after_backward

    def _run_batch(self, is_first: bool = True) -> tuple[Metrics, float]:
        """Forward and backward of one batch; returns what the model gave and the time to load."""
        if is_first and self.zero_grad_before_forward:
            self.optimizer.zero_grad()
        start = perf_counter()
        data = next(self._iterator or self._data_loader_iter)  # to change it, wrap the data loader
        data_time = perf_counter() - start
        metrics = self._forward(data)  # to change the losses, wrap the model
        loss = total_loss(metrics)
        if is_first and not self.zero_grad_before_forward:
            self.optimizer.zero_grad()
        self._backward(loss if self.accumulate == 1 else loss / self.accumulate)
        return metrics, data_time

    def _run_batches(self) -> tuple[Metrics, float]:
        parts: list[tuple[Metrics, float]] = []
        for left in reversed(range(self.accumulate)):
            with self._no_gradient_sync() if left else nullcontext():
                parts.append(self._run_batch(is_first=not parts))
        return mean_of([metrics for metrics, _ in parts]), sum(seconds for _, seconds in parts)

    def reset_data_loader(self, data_loader_builder: Callable[[], Iterable[Any]]) -> None:
        """Drop the data loader, then take the one that the function builds."""
        self.data_loader = ()  # frees the old loader before the new one needs its memory
        self.data_loader = data_loader_builder()

    def before_train(self) -> None:
        self.start_data_at(self.start_iter)
        super().before_train()

    def start_data_at(self, iteration: int) -> None:
        """Have a loader that can start anywhere (`start_at`) give the batches of this iteration."""
        if hasattr(self.data_loader, "start_at"):
            self.data_loader.start_at(iteration * self.accumulate)
            self._iterator = None

    @property
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
        self._iterator = None

    @property
    def _data_loader_iter(self) -> EndlessIterator:
        if self._iterator is None:
            self._iterator = EndlessIterator(self._data_loader)
        return self._iterator

    @staticmethod
    def write_metrics(
        loss_dict: Metrics, data_time: float, cur_iter: int, prefix: str = ""
    ) -> None:
        """Store the metrics of a step of your own; raises if a loss is NaN or infinite."""
        total = put_step_metrics(loss_dict, data_time, cur_iter, prefix)
        error = find_nonfinite(total, loss_dict, cur_iter)
        if error:
            raise FloatingPointError(error)

    def _write_metrics(
        self, loss_dict: Metrics, data_time: float, prefix: str = "", iter: int | None = None
    ) -> bool:
        """Store the metrics where the period says so; False if the step is to be skipped."""
        iteration = self.iter if iter is None else iter
        is_stored = (iteration + 1) % self.gather_metric_period == 0
        total = put_step_metrics(loss_dict, data_time, iteration, prefix, is_stored)
        if type(total) is float and isfinite(total):
            return True
        return self.nonfinite.allows_step(total, loss_dict, iteration, self.optimizer)

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
        loss.backward()

    def _step_optimizer(self) -> None:
        if self.clip_gradients is not None:
            get_event_storage().put_scalar("grad_norm", self.clip_gradients(self.optimizer))
        self.optimizer.step()
        if self.nonfinite.policy == "skip":
            vars(self.optimizer).pop("found_inf", None)  # it was about this step only

    def _no_gradient_sync(self) -> AbstractContextManager:
        # Under DistributedDataParallel, only the last batch of a step sends its gradients.
        no_sync: Callable = getattr(self.model, "no_sync", nullcontext)
        return no_sync()

    def state_dict(self) -> dict[str, Any]:
        state = {**super().state_dict(), "optimizer": self.optimizer.state_dict()}
        if hasattr(self.data_loader, "state_dict"):
            state["data_loader"] = self.data_loader.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.optimizer.load_state_dict(state_dict["optimizer"])
        if hasattr(self.data_loader, "load_state_dict") and "data_loader" in state_dict:
            self.data_loader.load_state_dict(state_dict["data_loader"])
            self._iterator = None


class AMPTrainer(SimpleTrainer):
    """SimpleTrainer with the forward pass in `precision`: float16 with a loss scaler, or bfloat16.

    The device is that of the model's parameters. `grad_scaler` defaults to one that scales
    dynamically for float16, and to none for bfloat16, which does not need it.
    """

    def __init__(
        self,
        model: nn.Module,
        data_loader: Iterable[Any],
        optimizer: torch.optim.Optimizer,
        gather_metric_period: int = 1,
        zero_grad_before_forward: bool = False,
        grad_scaler: torch.amp.GradScaler | None = None,
        precision: torch.dtype = torch.float16,
        log_grad_scaler: bool = False,
        async_write_metrics: bool = False,
        **step_options: Any,
    ) -> None:
        super().__init__(
            model,
            data_loader,
            optimizer,
            gather_metric_period,
            zero_grad_before_forward,
            async_write_metrics,
            **step_options,
        )
        self._device_type = next(model.parameters()).device.type
        if grad_scaler is None:
            grad_scaler = torch.amp.GradScaler(
                self._device_type, enabled=precision == torch.float16
            )
        self.grad_scaler = grad_scaler
        self.precision = precision
        self.log_grad_scaler = log_grad_scaler
        is_bfloat16_on_cpu = (self._device_type, precision) == ("cpu", torch.bfloat16)
        self._avoids_onednn = is_bfloat16_on_cpu and not has_working_bfloat16_kernels()
        if self._avoids_onednn:
            logger.warning(
                "oneDNN's bfloat16 kernels do not run on this machine: torch's own are used"
            )

    def _run_batch(self, is_first: bool = True) -> tuple[Metrics, float]:
        if not self._avoids_onednn:
            return super()._run_batch(is_first)
        with without_onednn():
            return super()._run_batch(is_first)

    def _forward(self, data: Any) -> Metrics:
        with torch.autocast(self._device_type, dtype=self.precision):
            return super()._forward(data)

    def _backward(self, loss: torch.Tensor) -> None:
        self.grad_scaler.scale(loss).backward()

    def _step_optimizer(self) -> None:
        if self.log_grad_scaler:
            scale = self.grad_scaler.scale(torch.ones((), device=self._device_type))
            get_event_storage().put_scalar("[metric]grad_scaler", scale)
        if self.grad_scaler.is_enabled():
            if self.clip_gradients is not None:
                self.grad_scaler.unscale_(self.optimizer)
                get_event_storage().put_scalar("grad_norm", self.clip_gradients(self.optimizer))
            # It skips the step and lowers the scale by itself where gradients are infinite.
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            super()._step_optimizer()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.grad_scaler.load_state_dict(state_dict["grad_scaler"])
