"""The loop: TrainerBase runs hooks around any step."""

import logging
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from engine.events import EventStorage
from engine.hooks.base import HookBase
from engine.hooks.hook_list import HookList, attach_error
from engine.run_state import RunState
from engine.stop_decision import StopDecision
from engine.utils.default_property import default_property

# As in detectron2; the first and the third are given by `__getattr__`.
__all__ = ["AMPTrainer", "HookBase", "SimpleTrainer", "TrainerBase"]  # noqa: F822

logger = logging.getLogger(__name__)


class TrainerBase:
    """A loop with hooks around each step. It assumes nothing about what a step is.

    Subclass it and write `run_step`, or use SimpleTrainer for the common case of one model, one
    optimizer and one data loader.

    `iter` is the number of the current step, from 0; after a run that went to its end it is
    `max_iter`. `storage` is the run's EventStorage, readable also after the run.
    """

    storage: EventStorage
    _max_iter = 0  # here, as a subclass may set it before it calls our constructor
    _steps_are_joint = False  # whether several ranks take steps together now
    _heeds_stops = False  # whether the loop that runs is that of `train`, and no other

    def __init__(self) -> None:
        self.iter = 0
        self.start_iter = 0
        self.failed = False
        self._stopping = StopDecision()
        self._hook_list = HookList()
        self._is_training = False
        self._handled_error: BaseException | None = None
        self._iter_is_ahead = False  # until the step of iteration `iter` has ended
        self._outer: TrainerBase | None = None  # the trainer whose run_step calls this one's
        self._run_state = RunState(self)

    # --- the loop ---------------------------------------------------------------------------

    def train(self, start_iter: int, max_iter: int) -> None:
        """Run the steps `start_iter` to `max_iter - 1`, with all hooks.

        Whatever fails, the `after_train` of every hook that was started runs, and the first error
        is the one that comes out. May be called again; with nothing left to do no hook runs.
        """
        self._prepare(start_iter, max_iter)
        if (start_iter == max_iter or self.stop_reasons) and not self.has_advanced:
            why = "".join(f"; {reason}" for reason in self.stop_reasons)
            logger.info(
                "Nothing to train: iteration %d of %d is reached%s", self.iter, max_iter, why
            )
            return
        logger.info("Starting training from iteration %d", start_iter)
        self._heeds_stops = True
        with self.storage:
            try:
                with self._run_state.leaving_evaluations():
                    self._run_state.compare_ranks()
                    self.before_train()
                    self._run_state.take_up()
                    while not self._is_over():
                        self._iter_is_ahead = True
                        self.before_step()
                        self.run_step()
                        self._iter_is_ahead = False
                        self.after_step()
                        self.iter += 1
                self._end_steps()
            except BaseException as error:  # KeyboardInterrupt and SystemExit too
                self._end_failed_run(error)
                raise
            are_joint = self._steps_are_joint
            try:
                self.after_train()
            finally:
                self._is_training = False
            if are_joint:
                self._run_state.wait_for_other_ranks()

    def run_step(self) -> None:
        """Do one step."""
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    def stop(self, reason: str, requeue: bool = False) -> None:
        """End the run after the current step. What belongs to a regular end still happens.

        With `requeue` the run is to be continued by another process: it is saved as it is, without
        a last evaluation, and a script should end with the exit code 75. With several processes a
        call on one of them stops all, some steps later, or right after an evaluation that it comes
        in. It may be called in a signal handler.
        """
        self._stopping.ask(reason, requeue)

    @property
    def max_iter(self) -> int:
        """The number of iterations that the run ends with.

        With several processes one of them may set it in the midst of a run. It is then that of all
        some steps later, as with `stop`, also where all of them set it; until then it reads as
        before. If several numbers are set, the smallest counts.
        """
        return self._max_iter

    @max_iter.setter
    def max_iter(self, max_iter: int) -> None:
        if self._steps_are_joint and self._is_training:
            self._stopping.wanted_length = max_iter
        else:
            self._max_iter = max_iter

    @property
    def stop_reasons(self) -> list[str]:
        """What has asked this run to stop, on this rank."""
        return self._stopping.reasons

    @property
    def requeue(self) -> bool:
        """Whether the run has ended early, for another process to go on with it."""
        return self._stopping.requeue

    @property
    def has_advanced(self) -> bool:
        """Whether there is more to save than the checkpoint that the run began with."""
        return self.iter > self.start_iter or self._run_state.takes_up

    @property
    def has_failed_hook(self) -> bool:
        """Whether a hook has failed where the others are called all the same, as in `after_train`.

        Other ranks may then never come to what ranks do together.
        """
        return self._hook_list.has_failed

    def agree_on_stop(self) -> None:
        """Have a stop that was asked for on any rank be known to all now. All ranks call it."""
        self._stopping.agree()

    def epoch_of(self, iteration: int) -> int | None:
        """The epoch that an iteration begins in, from 0; None where epochs have no known length."""
        inner = self._inner_trainer()
        return inner.epoch_of(iteration) if inner else None

    @default_property
    def epoch_length(self) -> float | None:
        """Iterations in an epoch; None where that is not known."""
        inner = self._inner_trainer()
        return inner.epoch_length if inner else None

    # --- the points: each calls the hooks ---------------------------------------------------

    def before_train(self) -> None:
        self.failed = False
        self._is_training = True
        self._handled_error = sys.exc_info()[1]  # that the caller handles now; not this run's
        self._link_inner(weakref.proxy(self))
        self._hook_list.start()

    def after_train(self) -> None:
        self._is_training = self._steps_are_joint = self._heeds_stops = False
        # A `train` of the user's own may call this in a `finally`, with an error on its way.
        self.failed = self.failed or sys.exc_info()[1] not in (None, self._handled_error)
        self._handled_error = None  # it would keep all that its frames hold
        self._iter_is_ahead = self._iter_is_ahead or self.iter >= self.max_iter
        self._link_inner(None)
        self.storage.iter = self.iter
        self._hook_list.finish()

    def before_step(self) -> None:
        self._iter_is_ahead = True
        self.storage.iter = self.iter
        hooks = self._hook_list
        hooks.mind_changes()
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
        if hooks.calls["after_epoch"]:
            self._run_state.run_after_epoch()

    def before_eval(self) -> None:
        self._run_state.begin_evaluation()
        self._run_state.leave_evaluation_if_asked()
        self._hook_list.run("before_eval")

    def before_eval_step(self) -> None:
        self._hook_list.run("before_eval_step")
        self._run_state.leave_evaluation_if_asked()

    def after_eval_step(self, outputs: Any) -> None:
        self._hook_list.run("after_eval_step", outputs)

    def after_eval(self, results: dict[str, Any]) -> None:
        self._run_state.end_evaluation()
        self._hook_list.run_all("after_eval", results)

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
        """The last finished iteration, the states of hooks, storage and random generators."""
        return self._run_state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back a state; `iter` is then the last finished iteration, so go on from the next."""
        self.iter, self._iter_is_ahead = state_dict["iteration"], False
        self._hook_list.load_state_dict(state_dict.get("hooks", {}))
        self._run_state.load_state_dict(state_dict)

    def gather_random_states(self, hook: HookBase) -> None:
        """Have the random states of all ranks in what rank 0 saves next in this iteration, and
        those of their data loaders.

        A hook that saves calls it with itself, in the same iterations on all ranks. Where other
        ranks do not have the hook, only rank 0's state is saved, and a resumed run is not exact.
        """
        self._run_state.gather_random_states(hook)

    def _loader_with_state(self) -> Any:
        """The data loader, if its place does not follow from the iteration; else None."""
        inner = self._inner_trainer()
        return inner._loader_with_state() if inner else None

    @property
    def next_iter(self) -> int:
        """The first iteration that is not finished: `iter`, or after its step the one after it."""
        return self.iter if self._iter_is_ahead else self.iter + 1

    def _prepare(self, start_iter: int, max_iter: int) -> None:
        if not 0 <= start_iter <= max_iter:
            raise ValueError(
                f"train({start_iter}, {max_iter}): start_iter must be between 0 and max_iter; "
                "raise max_iter to train a finished run further"
            )
        self._stopping = self._run_state.begin(start_iter, max_iter)
        self.iter = self.start_iter = start_iter
        self._steps_are_joint = False
        self.max_iter = max_iter
        self.failed = False
        self._iter_is_ahead = True

    def _end_steps(self) -> None:
        self._iter_is_ahead = True
        self.storage.sync()  # a loss that no writer asked for may be a NaN
        self._stopping.settle()
        if reasons := "; ".join(self.stop_reasons):
            logger.info("Stopping after %d of %d iterations: %s", self.iter, self.max_iter, reasons)
        self._run_state.end_steps()

    def _end_failed_run(self, error: BaseException) -> None:
        self.failed = True
        for action in (partial(self._log_failure, error), self.after_train):
            try:
                action()
            except BaseException as later:  # an impatient second Ctrl-C too
                attach_error(error, later)
        self._is_training = False

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            is_echo = "Connection closed by peer" in str(error)  # gloo's words
            logger.error(
                "Exception during training, at iteration %d%s",
                self.iter,
                ": another rank has ended, and its log says why" if is_echo else "",
                exc_info=error,
                extra={"is_raised": True},
            )
        else:
            logger.warning("%s at iteration %d", type(error).__name__, self.iter)

    def _is_over(self) -> bool:
        if self.iter >= self.max_iter:
            self._agree_on_max_iter()
            if self.iter >= self.max_iter:
                return True
        if self.storage.early_stop:
            self._heed_early_stop()
        is_stopped = self._stopping.is_made()
        if self._stopping.asks_for_length:
            self._agree_on_max_iter()
            return is_stopped or self.iter >= self.max_iter
        return is_stopped

    def _agree_on_max_iter(self) -> None:
        if self._steps_are_joint:
            self._max_iter = max(self.iter, self._stopping.agree_on_length(self.max_iter))

    def _heed_early_stop(self) -> None:
        if self.storage.early_stop and not self.stop_reasons:
            self.stop("storage.early_stop was set")

    def _begins_epoch(self) -> bool:
        epoch = self.epoch_of(self.iter)
        if epoch is None:
            return False
        return self.iter == self.start_iter or epoch != self.epoch_of(self.iter - 1)

    def _ends_epoch(self) -> bool:
        return self.epoch_of(self.iter) != self.epoch_of(self.iter + 1)

    def _link_inner(self, outer: "TrainerBase | None", *outers: "TrainerBase") -> None:
        for inner in self._inner_trainers():
            if inner not in (self, *outers):  # it may refer back
                inner._outer = outer
                inner._link_inner(outer and weakref.proxy(inner), self, *outers)

    def _inner_trainer(self) -> "TrainerBase | None":
        return next(iter(self._inner_trainers()), None)

    def _inner_trainers(self) -> "list[TrainerBase]":
        # The type is asked, not the instance: a weak proxy to the outer trainer is none of ours.
        return [one for one in vars(self).values() if issubclass(type(one), TrainerBase)]


def __getattr__(name: str) -> Any:
    # detectron2 has the trainers with the usual step in the module of this name too.
    if name in ("SimpleTrainer", "AMPTrainer"):
        return getattr(import_module("engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
