"""BestCheckpointer: keeps the best weights so far."""

import logging
import os
from contextlib import suppress
from typing import Any

from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer

from engine.checkpoint import warn_of_failed_save
from engine.hooks.base import HookBase, Priority
from engine.hooks.best import Best, Mode
from engine.hooks.checkpointing import calls_back, may_save_last, saves_shards
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils.periods import Period, is_due, read_period

logger = logging.getLogger(__name__)


class BestCheckpointer(HookBase):
    """Saves `model_best.pth` when a metric of an evaluation is better than ever before.

    `val_metric` is its name, with `mode` "max" or "min"; or "+name" (higher is better) or "-name".
    NaN and infinity are never best. The best value survives a resume. A metric that a hook only
    puts into the storage is looked for there every `eval_period`.
    """

    priority = Priority.LOW + 10  # after the evaluation, before the writers
    is_joint = False

    def __init__(
        self,
        eval_period: int | str,
        checkpointer: FvcoreCheckpointer,
        val_metric: str,
        mode: Mode | None = None,
        file_prefix: str = "model_best",
    ) -> None:
        self._checkpointer = checkpointer
        self.is_joint = saves_shards(checkpointer)
        self._period = read_period(eval_period, JointPeriod if self.is_joint else Period)
        self._best = Best(val_metric, mode, without="no best checkpoint is saved")
        self._file_prefix = file_prefix
        self._results: dict[str, Any] = {}  # of evaluations since the last look
        self._was_evaluated = False  # since then
        self._has_results = False  # some evaluation had any
        self._before: dict[str, Any] | None = None  # the best before one that is being written

    @property
    def _val_metric(self) -> str:
        return self._best.metric

    @property
    def best_metric(self) -> float | None:
        """The best value so far."""
        return self._best.value

    @property
    def best_iter(self) -> int | None:
        """The iteration that gave it."""
        return self._best.iteration

    def describe(self) -> str:
        """Which value was the best, and where it was saved."""
        if self._best.value is None:
            return f"There is no best checkpoint: no evaluation had {self._best.metric!r}"
        endings = ("", ".pth") if saves_shards(self._checkpointer) else (".pth", "")
        paths = [os.path.join(self._checkpointer.save_dir, self._file_prefix + e) for e in endings]
        # It may have been saved under another strategy.
        path = next(filter(os.path.exists, paths), paths[0])
        value, iteration = self._best.value, self._best.iteration
        return f"The best {self._best.metric} was {value:.5f} at iteration {iteration}: {path}"

    def after_eval(self, results: dict[str, Any]) -> None:
        self._was_evaluated = True
        self._has_results |= bool(results)
        self._results.update(results)

    def after_step(self) -> None:
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        is_checked = is_due(self._period, self.trainer) or self._was_evaluated
        if is_checked and not is_last:
            self._best_checking()

    def after_train(self) -> None:
        if may_save_last(self.trainer, self.is_joint) and not self.trainer.requeue:
            self._best_checking()

    def _best_checking(self) -> None:
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
        if saves_shards(self._checkpointer):  # all ranks save; only the first may have the results
            is_best = comm.all_gather(is_best)[0]
        if not is_best:
            return
        checkpointer, options = self._checkpointer, dict[str, Any]()
        if calls_back(checkpointer):
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
