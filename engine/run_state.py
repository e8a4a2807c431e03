"""RunState: what is saved of a run beside model and optimizer, and how the next run takes it up."""

import logging
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.events import EventStorage
from engine.hooks.base import HookBase
from engine.hooks.hook_list import EvaluationLeft
from engine.parallel import comm
from engine.parallel.random_states import restore_random_states
from engine.stop_decision import StopDecision
from engine.utils.periods import Period
from engine.utils.random_state import get_random_state

if TYPE_CHECKING:
    from engine.train_loop import TrainerBase

logger = logging.getLogger(__name__)

LONGEST_END = 3600.0  # seconds that ranks wait for what one of them does last, as rank 0's save
_SAVED_KEYS = ("storage", "random_states", "data_states", "left_at", "stopped", "finished")


class RunState:
    """What a checkpoint holds of a run beside model and optimizer, so that a resumed run is exact.

    These are the states of hooks, storage and random generators; where in an iteration the run was
    left (`left_at`); whether it was stopped for good (`stopped`); and whether all that comes after
    the last step is done too (`finished`). If the run is to be continued (`requeue`), what hooks do
    in `after_train` is not saved: the resumed run does it at its own end.
    """

    def __init__(self, trainer: "TrainerBase") -> None:
        self._trainer = weakref.proxy(trainer)
        self._saved: dict[str, Any] = {}  # what the loaded checkpoint held; {} for a new run
        # Whether the run must first finish an iteration, or an end, that the saved one had begun.
        self.takes_up = False
        # The state to save if the evaluation that is running is left; {} where none is.
        self._before_evaluation: dict[str, Any] = {}
        self._state_to_save: dict[str, Any] = {}  # set where an evaluation was left
        # When, and of all ranks the random states and those of their data loaders.
        self._gathered: tuple[object, list[tuple[dict[str, Any], Any]]] = (None, [])
        self._common_hooks: set[str] = set()  # of all ranks, where there are several
        self._after_epoch_at = -1  # the last iteration whose `after_epoch` has begun

    # --- saving -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        iteration = trainer.iter - trainer._iter_is_ahead
        state = {"iteration": iteration, **(self._state_to_save or self._now())}
        if "storage" in state:
            state |= self._end()
        return state

    def gather_random_states(self, hook: HookBase) -> None:
        if self._trainer._hook_list.name_of(hook) in self._common_hooks:
            self._gather_from_ranks()

    def _gather_from_ranks(self) -> None:
        loader = self._trainer._loader_with_state()
        data_state = None if loader is None else loader.state_dict()
        self._gathered = self._moment(), comm.gather((get_random_state(), data_state))
        self._trainer.storage.join_ranks()  # or lines after a resume would begin with rank 0's own

    def _now(self) -> dict[str, Any]:
        trainer, state = self._trainer, dict[str, Any]()
        if hooks := trainer._hook_list.state_dict():
            state["hooks"] = hooks
        if hasattr(trainer, "storage"):  # without one, another trainer runs this one's steps
            state["storage"] = trainer.storage.state_dict()
            gathered_at, of_ranks = self._gathered
            if gathered_at != self._moment():
                of_ranks = [(get_random_state(), None)]
            state["random_states"] = [random_state for random_state, _ in of_ranks]
            if any(data_state is not None for _, data_state in of_ranks):
                state["data_states"] = [data_state for _, data_state in of_ranks]
        if hook := self._owed_after_epoch():
            state["left_at"] = {"point": "after_epoch", "hook": hook}
        return state

    def _moment(self) -> tuple[int, bool]:
        return self._trainer.iter, self._trainer._iter_is_ahead

    def _end(self) -> dict[str, Any]:
        trainer, end = self._trainer, dict[str, Any]()
        trainer._heed_early_stop()
        if reasons := list(trainer._stopping.final_reasons):
            is_made = not trainer._is_training
            end["stopped"] = {"reasons": reasons, "is_made": is_made, "max_iter": trainer.max_iter}
        is_over = not trainer._is_training and (reasons or trainer.iter >= trainer.max_iter)
        is_left = trainer.failed or trainer.requeue or trainer.has_failed_hook
        return {**end, "finished": bool(is_over and not is_left)}

    def _owed_after_epoch(self) -> str:
        """The first hook whose `after_epoch` of this iteration is yet to come; "" if none."""
        trainer = self._trainer
        calls = trainer._hook_list.calls["after_epoch"]
        is_after_step = trainer._is_training and not trainer._iter_is_ahead
        if not calls or not is_after_step or self._after_epoch_at == trainer.iter:
            return ""
        return trainer._hook_list.name_of(calls[0].hook) if trainer._ends_epoch() else ""

    # --- going on ---------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = {name: state_dict[name] for name in _SAVED_KEYS if name in state_dict}

    def begin(self, start_iter: int, max_iter: int) -> StopDecision:
        """Open the storage of a run; returns what the saved one had decided on its end."""
        trainer = self._trainer
        saved = self._saved = self._saved if start_iter == trainer.iter + 1 else {}
        if start_iter == trainer.iter > 0 and hasattr(trainer, "storage"):
            saved = {"storage": _results_of(trainer.storage, start_iter)}
        trainer.storage = EventStorage(start_iter)
        if "storage" in saved:
            trainer.storage.load_state_dict(saved["storage"])
        stopped = saved.get("stopped", {})
        if max_iter > stopped.get("max_iter", max_iter):
            stopped = {}  # the user wants to train it further
        is_over = bool(stopped) or start_iter == max_iter
        self.takes_up = (is_over and not saved.get("finished", True)) or "left_at" in saved
        self._before_evaluation, self._state_to_save = {}, {}
        self._gathered, self._after_epoch_at = (None, []), -1
        return StopDecision(stopped.get("reasons", ()), stopped.get("is_made", False))

    def compare_ranks(self) -> None:
        """Refuse hooks that wait for other ranks where not all ranks have them, and runs that would
        begin or end at different iterations."""
        if self._is_alone():
            return
        ends = comm.all_gather((self._trainer.start_iter, self._trainer.max_iter))
        starts, lengths = zip(*ends, strict=True)
        if len(set(starts)) > 1:
            raise ValueError(
                f"ranks would train from different iterations: {[*starts]}; have they loaded "
                "different checkpoints? Machines must share the folder that they resume from"
            )
        _refuse_different(lengths)
        joint = [hook for hook in self._trainer._hooks if hook.is_joint]
        first, *others = comm.all_gather(Counter(map(_joint_class, joint)))
        for rank, counts in enumerate(others, start=1):
            for name in sorted({*first, *counts}):
                if counts[name] != first[name]:
                    raise ValueError(
                        f"{name} waits for all ranks, so all must have it: "
                        f"there are {first[name]} on rank 0, {counts[name]} on rank {rank}"
                    )

    def take_up(self) -> None:
        """Restore the random states, which the start has used, and end the iteration that was left
        in the middle."""
        trainer, saved, self._saved = self._trainer, self._saved, {}
        if not self._is_alone():
            # One of a rank alone that comes first has the name of another one elsewhere.
            own = {(trainer._hook_list.name_of(hook), self._when(hook)) for hook in trainer._hooks}
            hooks, lengths = zip(*comm.all_gather((own, trainer.max_iter)), strict=True)
            _refuse_different(lengths)  # a hook's `before_train` may have set it
            self._common_hooks = {name for name, _ in set.intersection(*hooks)}
            trainer._steps_are_joint = True
        if "random_states" in saved:
            restore_random_states(saved["random_states"])
            self._restore_data_state(saved.get("data_states", []))
        if left_at := saved.get("left_at"):
            trainer.iter -= 1
            trainer.storage.iter, trainer._iter_is_ahead = trainer.iter, False
            if left_at["point"] == "after_step":
                trainer._hook_list.run("after_step", first=left_at["hook"])
                self.run_after_epoch()
            else:
                self.run_after_epoch(first=left_at["hook"])
            trainer.iter += 1

    def _when(self, hook: HookBase) -> str:
        """Its period; of one in epochs with their length, which may differ between ranks."""
        period = getattr(hook, "period", None)
        is_in_epochs = isinstance(period, Period) and period.is_in_epochs
        return f"{period!r} of {self._trainer.epoch_length if is_in_epochs else None}"

    def _restore_data_state(self, states: list[Any]) -> None:
        """Give this rank's data loader its own state back; so far it has that of rank 0."""
        loader, world_size = self._trainer._loader_with_state(), comm.get_world_size()
        if loader is None or world_size == max(1, len(states)) == 1:
            return
        if len(states) == world_size:
            loader.load_state_dict(states[comm.get_rank()])
        elif comm.is_main_process():
            logger.warning(
                "The data loaders of %d processes were saved and there are %d: all of them go on "
                "from the place of rank 0",
                max(1, len(states)),
                world_size,
            )

    def run_after_epoch(self, first: str = "") -> None:
        trainer = self._trainer
        if trainer._hook_list.calls["after_epoch"] and trainer._ends_epoch():
            self._after_epoch_at = trainer.iter
            trainer._hook_list.run("after_epoch", first=first)

    # --- leaving ----------------------------------------------------------------------------

    def end_steps(self) -> None:
        """Keep the state, if it may be needed, before hooks do what only the end of a run does."""
        if not self._is_alone():
            self._gather_from_ranks()
        if not self._state_to_save and (self._is_alone() or self._trainer.requeue):
            state = self._now()
            self._before_evaluation = state if self._is_alone() else {}
            self._state_to_save = state if self._trainer.requeue else {}

    def wait_for_other_ranks(self) -> None:
        """Return when all ranks have ended the run: what rank 0 saves is then there for all. And
        should it die in that, the others have not left yet, and are restarted with it."""
        if not comm.do_all_come(LONGEST_END):
            raise RuntimeError("another rank has not come to the end of the run: its log says why")

    def begin_evaluation(self) -> None:
        if self._trainer._is_training and self._is_alone():
            self._before_evaluation = self._now()

    def end_evaluation(self) -> None:
        if self._trainer._is_training:
            self._before_evaluation = {}

    def leave_evaluation_if_asked(self) -> None:
        if self._before_evaluation and self._trainer._stopping.asks_requeue:
            self._state_to_save, self._trainer._stopping.requeue = self._before_evaluation, True
            raise EvaluationLeft

    @contextmanager
    def leaving_evaluations(self) -> Iterator[None]:
        """Let the steps end where an evaluation is left, and note where in the iteration it is."""
        try:
            yield
        except EvaluationLeft as left:
            if not self._trainer._iter_is_ahead:
                if left.hook:
                    self._state_to_save["left_at"] = {"point": left.point, "hook": left.hook}
                self._trainer.iter += 1

    def _is_alone(self) -> bool:
        # Ranks would have to agree before each batch, so only a single one leaves an evaluation.
        return comm.get_world_size() == 1


def _refuse_different(lengths: Sequence[int]) -> None:
    if len(set(lengths)) > 1:
        raise ValueError(
            f"ranks would train to different iterations: {[*lengths]}; give all the same, in "
            "iterations if their epochs are not equally long"
        )


def _joint_class(hook: HookBase) -> str:
    """The class that waits for other ranks: subclasses of it do so together."""
    return next(one.__name__ for one in type(hook).__mro__ if "is_joint" in vars(one))


def _results_of(storage: EventStorage, end: int) -> dict[str, Any]:
    """What was put at the end of a run: the files are cut there by one that trains it further."""
    scalars = storage.state_dict()["scalars"]
    late = {name: one for name, one in scalars.items() if one["iterations"][-1] >= end}
    return {"notes": {}, "scalars": late, "cursors": {}}
