"""TorchProfiler and AutogradProfiler: traces of chosen steps."""

import os
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from engine.hooks.base import HookBase
from engine.parallel import comm

if TYPE_CHECKING:
    from engine.train_loop import TrainerBase

    Predicate = Callable[[TrainerBase], bool] | Sequence[int]


class TorchProfiler(HookBase):
    """Profiles the steps for which `enable_predicate(trainer)` is true, with `torch.profiler`.

    The predicate may also be a pair of iterations, [10, 13] for 10 to 12, as configs give it. One
    trace a step: for TensorBoard below `output_dir/log`, or with `save_tensorboard=False` as
    `output_dir/profiler-trace-iterN.json` (of several ranks, `…-iterN-rankR.json`) for
    chrome://tracing and Perfetto. `activities` is that of `torch.profiler.profile`; by default all
    that the machine has.
    """

    def __init__(
        self,
        enable_predicate: "Predicate",
        output_dir: str,
        *,
        activities: list[torch.profiler.ProfilerActivity] | None = None,
        save_tensorboard: bool = True,
    ) -> None:
        for activity in activities or ():
            if not isinstance(activity, torch.profiler.ProfilerActivity):
                raise TypeError(
                    f"an activity is a torch.profiler.ProfilerActivity, got {activity!r:.80}"
                )
        self._enable_predicate = _as_function(enable_predicate)
        self._output_dir = os.fspath(output_dir)
        self._activities = activities
        self._save_tensorboard = save_tensorboard
        self._profiler: Any = None

    def before_step(self) -> None:
        if self._enable_predicate(self.trainer):
            self._profiler = self._make_profiler()
            self._profiler.__enter__()

    def after_step(self) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        self._export(profiler)

    def after_train(self) -> None:
        if self._profiler is not None:  # the step failed: its trace is not whole
            self._profiler.__exit__(None, None, None)
            self._profiler = None

    def _make_profiler(self) -> Any:
        return torch.profiler.profile(
            activities=self._activities,
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            with_flops=True,
        )

    def _export(self, profiler: Any) -> None:
        iteration = self.trainer.iter
        if self._save_tensorboard:
            folder = os.path.join(self._output_dir, "log", f"profiler-tensorboard-iter{iteration}")
            worker = f"worker{comm.get_rank()}"
            torch.profiler.tensorboard_trace_handler(folder, worker)(profiler)
        else:
            os.makedirs(self._output_dir, exist_ok=True)
            rank = f"-rank{comm.get_rank()}" if comm.get_world_size() > 1 else ""
            file = f"profiler-trace-iter{iteration}{rank}.json"
            profiler.export_chrome_trace(os.path.join(self._output_dir, file))


class AutogradProfiler(TorchProfiler):
    """Profiles chosen steps with the older autograd profiler. Prefer `TorchProfiler`."""

    def __init__(
        self,
        enable_predicate: "Predicate",
        output_dir: str,
        *,
        use_cuda: bool = True,
    ) -> None:
        warnings.warn(
            "AutogradProfiler is deprecated: use TorchProfiler", DeprecationWarning, stacklevel=2
        )
        super().__init__(enable_predicate, output_dir, save_tensorboard=False)
        self._use_cuda = use_cuda and torch.cuda.is_available()

    def _make_profiler(self) -> Any:
        return torch.autograd.profiler.profile(use_device="cuda" if self._use_cuda else None)


def _as_function(predicate: "Predicate") -> "Callable[[TrainerBase], bool]":
    if callable(predicate):
        return predicate
    is_pair = isinstance(predicate, Sequence) and len(predicate) == 2
    if not is_pair or not all(isinstance(iteration, Real) for iteration in predicate):
        raise TypeError(
            "enable_predicate must be a function of the trainer or a pair of iterations such as "
            f"[10, 13], got {predicate!r}"
        )
    start, end = predicate
    return lambda trainer: start <= trainer.iter < end
