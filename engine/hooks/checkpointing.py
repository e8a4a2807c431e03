"""PeriodicCheckpointer: saves the run now and then, and at its end."""

import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer

from engine.checkpoint import Checkpointer, delete_checkpoint, warn_of_failed_save
from engine.checkpoint.plain import as_plain
from engine.checkpoint.sharded import refuse_unshared_folder
from engine.hooks.base import HookBase, Priority
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils.periods import Period, is_due, read_period

PATIENCE = 10.0  # seconds that ranks are waited for which may have failed as this one has

logger = logging.getLogger(__name__)


class PeriodicCheckpointer(HookBase):
    """Saves `PREFIX_0000499.pth` every `period`, and `PREFIX_final.pth` when the run is complete.

    A run that was stopped is saved under its last iteration; one that failed is not. With
    `max_to_keep`, older ones of this prefix and run are deleted once a newer one is safe. A save
    that fails, for example on a full disk, is a warning, but for the last one. In a loop of your
    own call `step(iteration)`.
    """

    priority = Priority.LOWEST  # a checkpoint then holds what all other hooks did in its step
    is_joint = False

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
        self.is_joint = saves_shards(checkpointer)
        self.period = read_period(period, JointPeriod if self.is_joint else Period)
        self.max_iter = max_iter
        self.max_to_keep = max_to_keep
        self.file_prefix = file_prefix

    def before_train(self) -> None:
        self.max_iter = self.trainer.max_iter
        if isinstance(self.checkpointer, Checkpointer):
            saves = self.is_joint and any(comm.all_gather(self.checkpointer.save_to_disk))
            if saves and self.checkpointer.save_dir:
                refuse_unshared_folder(self.checkpointer.save_dir)
            self._refuse_states_that_cannot_be_saved()
            if self.trainer.start_iter == 0:
                self.checkpointer.begin_run()

    def after_step(self) -> None:
        self.step(self.trainer.iter)

    def after_train(self) -> None:
        trainer = self.trainer
        next_iter = trainer.next_iter  # `iter` or the one after it: a loop may be the user's own
        has_advanced = trainer.has_advanced or next_iter > trainer.start_iter
        if has_advanced and (
            may_save_last(trainer, self.is_joint) or self._has_failed_on_all_ranks()
        ):
            last = next_iter - 1
            is_complete = next_iter >= trainer.max_iter and not trainer.requeue
            # A run killed before it deleted old ones does so now.
            self._save_and_delete_old(self._final if is_complete else self._numbered(last), last)
        if isinstance(self.checkpointer, Checkpointer):
            self.checkpointer.wait()

    def step(self, iteration: int, **extra: Any) -> None:
        """Save what is due at the end of an iteration; in a trainer the hook calls this itself."""
        trainer = getattr(self, "trainer", None)
        if is_due(self.period, trainer or _Iteration(iteration)):
            if trainer:
                trainer.storage.sync()  # a NaN that it reports ends the run, not the save
                self._gather_random_states()
            with failed_save_is_a_warning(self._numbered(iteration)) if trainer else nullcontext():
                self._save_and_delete_old(self._numbered(iteration), iteration, **extra)
        is_last = self.max_iter is not None and iteration >= self.max_iter - 1
        if is_last and not trainer:
            self.save(self._final, iteration=iteration, **extra)

    def save(self, name: str, **extra: Any) -> None:
        """Save now, under this name."""
        self.checkpointer.save(name, **extra)

    def _refuse_states_that_cannot_be_saved(self) -> None:
        """Now, and not when many iterations are done."""
        saved = self.checkpointer.checkpointables.values()
        saves_hooks = any(hasattr(one, "_hook_list") for one in saved)
        if not (saves_hooks and self.checkpointer.save_dir and self.checkpointer.save_to_disk):
            return
        try:
            states = self.trainer._hook_list.state_dict()
        except Exception:  # some may have one only when a step was done
            return
        as_plain(states, "trainer['hooks']")

    def _has_failed_on_all_ranks(self) -> bool:
        """Whether a hook has failed at the end, as an evaluation may, but on all ranks alike: they
        can save together all the same."""
        return not self.trainer.failed and comm.do_all_come(PATIENCE)

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
        if calls_back(self.checkpointer):
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
def failed_save_is_a_warning(name: str) -> Iterator[None]:
    """Make a save that fails a warning: a run of days does not end because of a full disk."""
    try:
        yield
    except (OSError, FloatingPointError) as error:
        warn_of_failed_save(name, error)


def may_save_last(trainer: Any, is_joint: bool) -> bool:
    """Whether to save after training. Ranks save shards together: after an error at the end of this
    one the others may never come to it."""
    return not trainer.failed and not (is_joint and trainer.has_failed_hook)


def calls_back(checkpointer: FvcoreCheckpointer) -> bool:
    """Whether its `save` takes `then`. To one of the user's own, that would be a thing to save."""
    is_ours = isinstance(checkpointer, Checkpointer)
    return is_ours and "then" in inspect.signature(checkpointer.save).parameters


def saves_shards(checkpointer: FvcoreCheckpointer) -> bool:
    """Whether all ranks save together."""
    return isinstance(checkpointer, Checkpointer) and checkpointer.saves_shards


class _Iteration:
    """The clock of a loop without a trainer."""

    def __init__(self, iteration: int) -> None:
        self.iter = iteration

    def epoch_of(self, iteration: int) -> int | None:
        return None
