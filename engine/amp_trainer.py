"""AMPTrainer: the usual step in mixed precision."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from engine.events import get_event_storage
from engine.events.step_metrics import Metrics
from engine.parallel.fsdp import device_type_of
from engine.simple_trainer import SimpleTrainer
from engine.solver import torch_calls
from engine.utils.cpu_bfloat16 import has_working_bfloat16_kernels, without_onednn

logger = logging.getLogger(__name__)


class AMPTrainer(SimpleTrainer):
    """SimpleTrainer with the forward pass in `precision`: float16 with a loss scaler, or bfloat16.

    The device is that of the model's parameters. `grad_scaler` defaults to one that scales
    dynamically for float16, and to none for bfloat16, which does not need it.
    """

    _has_stepped = False  # and not been skipped

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
        if not isinstance(precision, torch.dtype):
            raise TypeError(f"precision is like torch.bfloat16, got {precision!r}")
        if isinstance(model, nn.DataParallel):
            raise TypeError("AMPTrainer cannot train a DataParallel: use DistributedDataParallel")
        self._device_type = device_type_of(model)
        if grad_scaler is None:
            grad_scaler = torch.amp.GradScaler(
                self._device_type, enabled=precision == torch.float16
            )
        self.grad_scaler = grad_scaler
        # A scaler says itself which steps the optimizer leaves out on the device.
        self.nonfinite.may_leave_to_device = not grad_scaler.is_enabled()
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
        torch_calls.backward(self.grad_scaler.scale(loss))

    def _step_optimizer(self) -> None:
        if self.log_grad_scaler:
            scale = self.grad_scaler.scale(torch.ones((), device=self._device_type))
            get_event_storage().put_scalar("[metric]grad_scaler", scale)
        if self.grad_scaler.is_enabled():
            if self.clip_gradients is not None:
                self.grad_scaler.unscale_(self.optimizer)
                self._clip(self.clip_gradients)
            # It skips the step and lowers the scale by itself where gradients are infinite.
            # An optimizer of the user's own, around others, need not have a `state`.
            may_be_first = not (self._has_stepped or getattr(self.optimizer, "state", True))
            before = float(self.grad_scaler.get_scale()) if may_be_first else 0.0
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
            if may_be_first:
                self._has_stepped = bool(self.grad_scaler.get_scale() >= before)
                if not self._has_stepped:  # SGD, fused, has left memory unfilled as its momentum
                    self.optimizer.state.clear()
        else:
            super()._step_optimizer()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        saved = state_dict.get("grad_scaler")  # missing if the run was not in mixed precision
        if saved and self.grad_scaler.is_enabled():
            self.grad_scaler.load_state_dict(saved)
        elif saved or self.grad_scaler.is_enabled():
            logger.warning("The checkpoint is of another precision: its loss scale is not used")
