"""PreciseBN: exact statistics for batch normalisation."""

import itertools
import logging
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from engine.events import EventStorage
from engine.hooks.base import HookBase, Priority
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.parallel.strategy import is_parallel
from engine.utils.endless import EndlessIterator
from engine.utils.periods import is_due, read_period

logger = logging.getLogger(__name__)


class PreciseBN(HookBase):
    """Replaces the running statistics of BatchNorm layers by exact ones over `num_iter` batches,
    of all ranks where they train one model.

    It runs every `period` and after the last step, before checkpoints and evaluations use the
    statistics. Does nothing if no BatchNorm layer of `model` is in training mode. What the model
    puts into the storage meanwhile is dropped.

    Which batches it takes follows from the iteration where the loader can start anywhere
    (`start_at`): other ones each time. From other loaders it takes the next ones.
    """

    priority = Priority.ABOVE_NORMAL + 5  # after EMAHook, before evaluations
    is_joint = True

    def __init__(
        self, period: int | str, model: nn.Module, data_loader: Iterable[Any], num_iter: int
    ) -> None:
        if num_iter < 1:
            raise ValueError(f"num_iter must be 1 batch or more, got {num_iter}")
        self._period = read_period(period, JointPeriod)
        self._model = model
        self._data_loader = data_loader
        self._num_iter = num_iter
        self._batches: EndlessIterator | None = None
        self._updated_after = -1
        # An iterable data set has no sampler, and would be read up to there.
        has_sampler = getattr(data_loader, "sampler", data_loader) is not None
        self._can_jump = hasattr(data_loader, "start_at") and has_sampler
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fvcore.nn uses names that torch deprecates
            from fvcore.nn import precise_bn
        self._precise_bn = precise_bn
        self._is_disabled = not precise_bn.get_bn_modules(model)
        if self._is_disabled:
            logger.info("PreciseBN is off: the model has no BatchNorm layer in training mode")

    def after_step(self) -> None:
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        if is_due(self._period, self.trainer) or is_last:
            self._update_after(self.trainer.iter)

    def after_train(self) -> None:
        trainer, last = self.trainer, self.trainer.next_iter - 1
        if self._updated_after != last and not (trainer.failed or trainer.requeue):
            self._update_after(last)  # the run was stopped: its last evaluation comes now

    def state_dict(self) -> dict[str, Any]:
        if hasattr(self._data_loader, "state_dict"):
            return {"data_loader": self._data_loader.state_dict()}  # its seed may be a random one
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if hasattr(self._data_loader, "load_state_dict"):
            self._data_loader.load_state_dict(state_dict["data_loader"])
            self._batches = None

    def _update_after(self, iteration: int) -> None:
        self._updated_after = iteration
        if self._can_jump:
            # Statistics over as many batches as an epoch has are then those of an epoch.
            self._data_loader.start_at(iteration * self._num_iter)  # type: ignore[attr-defined]
            self._batches = None
        self.update_stats()

    def update_stats(self) -> None:
        """Compute the statistics now."""
        if self._is_disabled:
            return
        if self._batches is None:
            self._batches = EndlessIterator(self._data_loader)
        logger.info("Running PreciseBN over %d batches", self._num_iter)
        batches = itertools.islice(self._batches, self._num_iter)
        with EventStorage():
            self._precise_bn.update_bn_stats(self._model, batches, self._num_iter)
        models = self._model, getattr(getattr(self, "trainer", None), "model", None)
        if any(isinstance(model, nn.Module) and is_parallel(model) for model in models):
            _join_ranks(self._precise_bn.get_bn_modules(self._model))


@torch.no_grad()
def _join_ranks(layers: list[Any]) -> None:
    """Have the statistics be those of the samples of all ranks, which have equally many each."""
    named = {str(number): layer for number, layer in enumerate(layers)}
    means = comm.reduce_dict({name: layer.running_mean for name, layer in named.items()})
    variances = comm.reduce_dict(
        {
            name: layer.running_var + (layer.running_mean - means[name]) ** 2
            for name, layer in named.items()
        }
    )
    for name, layer in named.items():
        layer.running_mean.copy_(means[name])
        layer.running_var.copy_(variances[name])
