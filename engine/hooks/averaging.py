"""EMAHook: evaluates with an average of the weights instead of the latest ones."""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from engine.checkpoint import CheckpointError
from engine.checkpoint.finite import is_finite
from engine.hooks.base import HookBase, Priority
from engine.hooks.joint_period import JointPeriod
from engine.parallel.fsdp import reshard, shard_like
from engine.utils.lengths import check_length, to_iterations
from engine.utils.periods import is_due, read_period
from engine.utils.wrapping import plain_names, unwrap


class EMAHook(HookBase):
    """Keeps an exponential moving average of the weights, and evaluates with it.

    From the weights after `start` (500 iterations, "2 epoch") on, the average is
    `decay * average + (1 - decay) * weights` every `period`; until then it is the weights. Buffers
    are the model's own, or with `buffers` the floating-point ones are averaged too, but for masks
    of -inf and those that only a forward pass makes. The average is kept in float32 at least: in a
    lower precision it would hardly move. `model` is the trainer's unless given. The weights that
    train are never touched but during an evaluation, which needs memory for a copy of them.
    """

    priority = Priority.ABOVE_NORMAL  # evaluations and checkpoints of a step find it averaged

    def __init__(
        self,
        decay: float = 0.999,
        start: int | str = 0,
        period: int | str = 1,
        buffers: bool = False,
        model: nn.Module | None = None,
    ) -> None:
        check_length(start)
        self._update = get_ema_multi_avg_fn(decay)
        self._start = start
        self._period = read_period(period, JointPeriod)
        if not self._period:
            raise ValueError("the period of EMAHook (EMA.PERIOD) is 0: it would never average")
        self._buffers = buffers
        self._model = model
        self._trained: dict[str, torch.Tensor] = {}  # while an evaluation uses the average
        self.average: dict[str, torch.Tensor] = {}  # by name; empty before the start
        self.count = 0  # how often the average was updated

    def before_train(self) -> None:
        self._start_iter = to_iterations(self._start, self.trainer.epoch_length)
        self._live = self._find_live()
        if not self.average and self.trainer.iter >= self._start_iter:
            self.average = _begin_average(self._live)

    def after_step(self) -> None:
        if not self.average:
            if self.trainer.iter + 1 >= self._start_iter:
                self.average = _begin_average(self._live)
        elif is_due(self._period, self.trainer):
            if self._buffers:  # a module may have replaced one
                self._live = self._find_live()
            self.count += 1
            self._update_average()

    def before_eval(self) -> None:
        if self.average and not self._trained:
            self._live = self._find_live()
            self._trained = _copy(self._live)
            _assign(self._live, self.average)

    def after_eval(self, results: dict[str, Any]) -> None:
        self._take_back_trained()

    def after_train(self) -> None:
        self._take_back_trained()  # an evaluation may have failed

    def averaged_state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of the model's state dict with the averaged values."""
        if self._trained:
            return copy.deepcopy(self.model.state_dict())
        self.before_eval()
        try:
            return copy.deepcopy(self.model.state_dict())
        finally:
            self._take_back_trained()

    @property
    def model(self) -> nn.Module:
        """The model that is averaged, without the wrapper of DistributedDataParallel."""
        if self._model is None:  # kept from then on, as the average may outlive the trainer
            self._model = self.trainer.model  # type: ignore[attr-defined]
        model = self._model
        return unwrap(model)

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average), "count": self.count} if self.average else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved, live = state_dict["average"], self._find_live()
        problems = [f"{name} is missing" for name in live if name not in saved]
        problems += [f"{name} is not in the model" for name in saved if name not in live]
        problems += [
            f"{name} is {tuple(saved[name].shape)}, in the model {tuple(tensor.shape)}"
            for name, tensor in live.items()
            if name in saved and saved[name].shape != tensor.shape
        ]
        if problems:
            more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise CheckpointError(
                "the saved average of EMAHook does not fit the model or its `buffers`: "
                f"{'; '.join(problems[:5])}{more}. Resume with what was saved, or start a new run."
            )
        self.average = _begin_average(live)
        _assign(self.average, saved)
        self.count = state_dict["count"]

    def _find_live(self) -> dict[str, torch.Tensor]:
        """The model's own tensors that have an average; shared ones once."""
        reshard(self.model)
        named = dict[str, torch.Tensor](self.model.named_parameters())
        if self._buffers:
            buffers = self.model.named_buffers()
            named.update({name: one for name, one in buffers if name in self._averaged_buffers})
        plain = self._plain_name
        return {
            plain(name): one
            for name, one in named.items()
            if one.is_floating_point() and one.layout == torch.strided
        }

    @cached_property
    def _plain_name(self) -> Callable[[str], str]:
        return plain_names(self.model)

    @cached_property
    def _averaged_buffers(self) -> set[str]:
        """Buffers that are there from the start, which those are not that a forward pass makes; but
        for infinite ones, as the average of -inf and -inf would be NaN."""
        return {name for name, one in self.model.named_buffers() if is_finite(one)}

    def _update_average(self) -> None:
        # Sharded tensors and whole ones cannot be in one call.
        for kind in set(map(type, self.average.values())):
            self._move({name: one for name, one in self.average.items() if type(one) is kind})

    @torch.no_grad()
    def _move(self, averages: dict[str, torch.Tensor]) -> None:
        live = [self._live[name].to(average.dtype) for name, average in averages.items()]
        self._update(list(averages.values()), live, self.count)

    def _take_back_trained(self) -> None:
        if self._trained:
            reshard(self.model)
            _assign(self._live, self._trained)
            self._trained = {}


def _copy(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _begin_average(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        for name, tensor in _copy(tensors).items()
    }


@torch.no_grad()
def _assign(targets: dict[str, torch.Tensor], sources: dict[str, torch.Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(shard_like(sources[name], target))
