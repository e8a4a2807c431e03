"""EvalHook: evaluates while training."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from engine.evaluation import flatten_results_dict
from engine.hooks.base import HookBase, Priority
from engine.hooks.hook_list import attach_error
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.parallel.strategy import is_parallel
from engine.utils.periods import is_due, read_period

logger = logging.getLogger(__name__)


class EvalHook(HookBase):
    """Calls `eval_function` every `eval_period` and after training, and stores its results.

    The function returns a nested dict of numbers, or None. The results are stored unsmoothed under
    names joined by "/". The evaluation of the last step is the one after training; a run that
    failed, or is to be continued, has none. With a period of 0 there is only that one. A result
    that a rank does not have, as evaluators may give theirs to rank 0 alone, is that of rank 0.
    """

    priority = Priority.NORMAL  # hooks of users that look at its results are registered after it
    is_joint = True

    def __init__(
        self,
        eval_period: int | str,
        eval_function: Callable[[], Mapping[str, Any] | None],
        eval_after_train: bool = True,
    ) -> None:
        if not callable(eval_function):
            raise TypeError(
                f"an eval function is called at each evaluation, got {eval_function!r:.80}"
            )
        self._period = read_period(eval_period, JointPeriod)
        self._func = eval_function
        self._eval_after_train = eval_after_train
        self._renamed: set[str] = set()  # results whose names are those of metrics of training

    def after_step(self) -> None:
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        if is_due(self._period, self.trainer) and not is_last:
            self._do_eval()

    def after_train(self) -> None:
        trainer = self.trainer
        if self._eval_after_train and not trainer.failed and not trainer.requeue:
            self._do_eval()

    def _do_eval(self) -> None:
        trainer, storage = self.trainer, self.trainer.storage
        try:
            trainer.before_eval()
            _share_buffers(trainer)
            with storage.listening(
                before_eval_step=trainer.before_eval_step, after_eval_step=trainer.after_eval_step
            ):
                results = self._func()
            flat = _flatten(results)
            hints = storage.smoothing_hints()
            of_ranks = comm.all_gather((flat, {name for name in hints if hints[name]}))
            # What hooks make of them, such as a learning rate, is to be the same on all ranks.
            flat = {**of_ranks[0][0], **flat}
            # And so are their names: one rank alone may put a metric of training.
            self._store(flat, set.union(*(smoothed for _, smoothed in of_ranks)))
        except BaseException as error:
            try:
                trainer.after_eval({})  # what hooks did for it is undone before any save
            except Exception as later:  # a hook that looks for a result
                attach_error(error, later)
            raise
        trainer.after_eval(flat)
        trainer.agree_on_stop()  # here, as all ranks wait for the one that evaluates longest

    def _store(self, results: dict[str, float], of_training: set[str]) -> None:
        for name, value in results.items():
            stored = f"eval/{name}" if name in of_training else name
            if stored != name and name not in self._renamed:
                self._renamed.add(name)
                logger.warning(
                    "The result %r is stored as %r: training has a metric of that name",
                    name,
                    stored,
                )
            self.trainer.storage.put_scalar(stored, value, smoothing_hint=False)


def _share_buffers(trainer: Any) -> None:
    """Have all ranks evaluate with the statistics of rank 0, which are those that are saved."""
    model = getattr(trainer, "model", None)
    if isinstance(model, nn.Module) and is_parallel(model):  # else each rank has a model of its own
        comm.copy_from_rank_0(dict(model.named_buffers()))


def _flatten(results: Mapping[str, Any] | None) -> dict[str, float]:
    if results is None:
        return {}
    if not isinstance(results, Mapping):
        raise TypeError(f"an eval function must return a dict or None, got {results!r:.200}")
    try:
        return flatten_results_dict(results)
    except TypeError as error:
        raise ValueError(f"an eval function must return numbers: {error}") from error
