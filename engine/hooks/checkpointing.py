"""PeriodicCheckpointer, BestCheckpointer, SafetensorsHook: what is saved, and when."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

import torch
from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.checkpoint import Checkpointer, delete_checkpoint, warn_of_failed_save
from engine.hooks.base import HookBase, Priority
from engine.hooks.best import Best
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.parallel.fsdp import is_sharded, is_sharded_tensor
from engine.utils.files import atomic_write
from engine.utils.periods import Period, is_due, read_period

logger = logging.getLogger(__name__)


class PeriodicCheckpointer(HookBase):
    """Saves `PREFIX_0000499.pth` every `period`, and `PREFIX_final.pth` when the run is complete.

    A run that was stopped is saved under its last iteration; one that failed is not. With
    `max_to_keep`, older ones of this prefix and run are deleted once a newer one is safe. A save
    that fails, for example on a full disk, is a warning, but for the last one. In a loop of your
    own call `step(iteration)`.
    """

    priority = Priority.LOWEST  # a checkpoint then holds what all other hooks did in its step

    def __init__(
        self,
        checkpointer: FvcoreCheckpointer,
        period: int | str,
        max_iter: int | None = None,
        max_to_keep: int | None = None,
        file_prefix: str = "model",
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(f"max_to_keep must be at least 1, or None for all; got {max_to_keep}")
        self.checkpointer = checkpointer
        # All ranks save a sharded model, so all of them have this hook.
        self.period = read_period(period, JointPeriod if _is_sharded(checkpointer) else Period)
        self.max_iter = max_iter
        self.max_to_keep = max_to_keep
        self.file_prefix = file_prefix

    def before_train(self) -> None:
        self.max_iter = self.trainer.max_iter
        if self.trainer.start_iter == 0 and isinstance(self.checkpointer, Checkpointer):
            self.checkpointer.begin_run()

    def after_step(self) -> None:
        if is_due(self.period, self.trainer):
            self.trainer.storage.sync()  # a NaN that it reports ends the run, not the save
            self._gather_random_states()
            with going_on_without_a_save(self._numbered(self.trainer.iter)):
                self._save_and_delete_old(self._numbered(self.trainer.iter), self.trainer.iter)

    def after_train(self) -> None:
        trainer = self.trainer
        next_iter = trainer._next_iter  # `iter` or the one after it: a loop may be the user's own
        has_advanced = trainer.has_advanced or next_iter > trainer.start_iter
        if _may_save_last(trainer) and has_advanced:
            last = next_iter - 1
            is_complete = next_iter >= trainer.max_iter and not trainer.requeue
            # A run killed before it deleted old ones does so now.
            self._save_and_delete_old(self._final if is_complete else self._numbered(last), last)
        if isinstance(self.checkpointer, Checkpointer):
            self.checkpointer.wait()

    def step(self, iteration: int, **extra: Any) -> None:
        """Save what is due at the end of an iteration; in a trainer the hook does this."""
        if is_due(self.period, _Iteration(iteration)):
            self._save_and_delete_old(self._numbered(iteration), iteration, **extra)
        if self.max_iter is not None and iteration >= self.max_iter - 1:
            self.save(self._final, iteration=iteration, **extra)

    def save(self, name: str, **extra: Any) -> None:
        """Save now, under this name."""
        self.checkpointer.save(name, **extra)

    def _gather_random_states(self) -> None:
        # Periods in time of ranks that each look at their own clock do not end together.
        if isinstance(self.period, int | JointPeriod) or not self.period.is_in_time:
            self.trainer.gather_random_states(self)

    def _numbered(self, iteration: int) -> str:
        return f"{self.file_prefix}_{iteration:07d}"

    @property
    def _final(self) -> str:
        return f"{self.file_prefix}_final"

    def _save_and_delete_old(self, name: str, iteration: int, **extra: Any) -> None:
        delete_old = partial(self._delete_old, iteration)
        if isinstance(self.checkpointer, Checkpointer):
            self.save(name, iteration=iteration, then=delete_old, **extra)
        else:
            self.save(name, iteration=iteration, **extra)
            delete_old()

    def _delete_old(self, newest: int) -> None:
        """Delete all but the last ones up to `newest`; later ones are of another run."""
        checkpointer = self.checkpointer
        if not (self.max_to_keep and checkpointer.save_dir and checkpointer.save_to_disk):
            return
        names = set(os.listdir(checkpointer.save_dir))
        if isinstance(checkpointer, Checkpointer):
            names &= checkpointer.names_of_run()
        pattern = re.compile(re.escape(self.file_prefix) + r"_(\d{7,})(\.pth)?")
        numbered = {name: int(match[1]) for name in names if (match := pattern.fullmatch(name))}
        old = sorted({i for i in numbered.values() if i <= newest})[: -self.max_to_keep]
        for name, iteration in numbered.items():
            if iteration in old:
                delete_checkpoint(os.path.join(checkpointer.save_dir, name))


@contextmanager
def going_on_without_a_save(name: str) -> Iterator[None]:
    """Make a save that fails a warning: a run of days does not end because of a full disk."""
    try:
        yield
    except (OSError, FloatingPointError) as error:
        warn_of_failed_save(name, error)


def _is_sharded(checkpointer: FvcoreCheckpointer) -> bool:
    return isinstance(checkpointer, Checkpointer) and is_sharded(checkpointer.model)


class _Iteration:
    """The clock of a loop without a trainer."""

    def __init__(self, iteration: int) -> None:
        self.iter = iteration

    def epoch_of(self, iteration: int) -> int | None:
        return None


class BestCheckpointer(HookBase):
    """Saves `model_best.pth` when a metric of an evaluation is better than ever before.

    `val_metric` is its name, with `mode` "max" or "min"; or "+name" (higher is better) or "-name".
    NaN and infinity are never best. The best value survives a resume. A metric that a hook only
    puts into the storage is looked for there every `eval_period`.
    """

    priority = Priority.LOW + 10  # after the evaluation, before the writers

    def __init__(
        self,
        eval_period: int | str,
        checkpointer: FvcoreCheckpointer,
        val_metric: str,
        mode: Literal["max", "min"] | None = None,
        file_prefix: str = "model_best",
    ) -> None:
        self._period = read_period(eval_period)
        self._checkpointer = checkpointer
        self._best = Best(val_metric, mode)
        self._file_prefix = file_prefix
        self._results: dict[str, Any] = {}  # of evaluations since the last look
        self._was_evaluated = False  # since then
        self._has_results = False  # some evaluation had any
        self._before: dict[str, Any] | None = None  # the best before one that is being written

    @property
    def best_metric(self) -> float | None:
        """The best value so far."""
        return self._best.value

    @property
    def best_iter(self) -> int | None:
        """The iteration that gave it."""
        return self._best.iteration

    def after_eval(self, results: dict[str, Any]) -> None:
        self._was_evaluated = True
        self._has_results |= bool(results)
        self._results.update(results)

    def after_step(self) -> None:
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        is_checked = is_due(self._period, self.trainer) or self._was_evaluated
        if is_checked and not is_last:
            self._save_if_best()

    def after_train(self) -> None:
        if _may_save_last(self.trainer) and not self.trainer.requeue:
            self._save_if_best()

    def _save_if_best(self) -> None:
        self._forget_unsaved()
        before = self._best.state_dict()
        is_best = self._best.update(self._take_results(), self.trainer.iter)
        if is_best:
            logger.info(
                "Best %s so far: %.5f at iteration %d",
                self._best.metric,
                self._best.value,
                self._best.iteration,
            )
        if _is_sharded(self._checkpointer):  # all ranks save; only the first may have the results
            is_best = comm.all_gather(is_best)[0]
        if not is_best:
            return
        checkpointer, options = self._checkpointer, dict[str, Any]()
        if isinstance(checkpointer, Checkpointer):
            # A run is not resumed from its best weights: it would train what followed again.
            options = {"tag_as_last": False, "then": self._note_as_saved}
            self._before = before if checkpointer.saves_in_background else None
        try:
            checkpointer.save(self._file_prefix, iteration=self.trainer.iter, **options)
        except (OSError, FloatingPointError) as error:
            warn_of_failed_save(self._file_prefix, error)
            self._best.load_state_dict(before)

    def _take_results(self) -> dict[str, Any]:
        results, self._results, self._was_evaluated = self._results, {}, False
        if self._best.name_in(results) is None:
            history = self.trainer.storage.histories().get(self._best.metric)
            # Beside results, a value that came in the step before too is one of training.
            if history and not (self._has_results and len(history.recent(2)) > 1):
                return {self._best.metric: history.latest()}
        return results

    def _note_as_saved(self) -> None:
        self._before = None

    def _forget_unsaved(self) -> None:
        """Have a best value count no more if its weights could not be written."""
        if self._before is not None:
            with suppress(OSError, FloatingPointError):  # there was a warning
                self._checkpointer.wait()
        if self._before is not None:
            self._best.load_state_dict(self._before)
            self._before = None

    def state_dict(self) -> dict[str, Any]:
        return self._best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._best.load_state_dict(state_dict)


class SafetensorsHook(HookBase):
    """Saves the weights alone as `PREFIX_0000499.safetensors` every `period` and at the end."""

    priority = Priority.LOWEST

    def __init__(self, output_dir: str, period: int | str = 5000, prefix: str = "model") -> None:
        try:
            from safetensors.torch import save
        except ImportError as error:
            raise ImportError("pip install 'train-engine[export]' for SafetensorsHook") from error
        self._as_bytes = save
        self._output_dir = os.fspath(output_dir)
        self._period = read_period(period)
        self._prefix = prefix

    def before_train(self) -> None:
        if is_sharded(self.trainer.model):  # type: ignore[attr-defined]
            self._period = read_period(self._period, JointPeriod)  # all ranks gather the weights

    def after_step(self) -> None:
        if is_due(self._period, self.trainer):
            name = f"{self._prefix}_{self.trainer.iter:07d}"
            with going_on_without_a_save(name):
                self._save(name)

    def after_train(self) -> None:
        if _may_save_last(self.trainer) and not self.trainer.requeue:
            self._save(f"{self._prefix}_final")

    def _save(self, name: str) -> None:
        model = self.trainer.model  # type: ignore[attr-defined]
        if not comm.is_main_process() and not is_sharded(model):
            return
        model = model.module if isinstance(model, DistributedDataParallel) else model
        # Weights that share memory are refused, so each gets its own.
        weights = {k: _whole(v).contiguous().clone() for k, v in model.state_dict().items()}
        if not comm.is_main_process():
            return
        os.makedirs(self._output_dir, exist_ok=True)
        with atomic_write(os.path.join(self._output_dir, f"{name}.safetensors")) as file:
            file.write(self._as_bytes(weights))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if is_sharded_tensor(tensor) else tensor  # type: ignore[attr-defined]


def _may_save_last(trainer: Any) -> bool:
    """Whether to save after training. Ranks save shards together: after an error at the end of this
    one the others may never come to it."""
    model = getattr(trainer, "model", None)
    is_joint = isinstance(model, nn.Module) and is_sharded(model)
    return not trainer.failed and not (is_joint and trainer._hook_list.has_failed)
