"""PeriodicWriter: has the writers write."""

from collections.abc import Sequence
from typing import Any

from engine.events import EventWriter
from engine.hooks.base import HookBase, Priority
from engine.hooks.hook_list import attach_error
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils.periods import Period, is_due, read_period


class PeriodicWriter(HookBase):
    """Calls `write()` of its writers every `period`, at the last step, and after an evaluation.

    Where a run begins, its writers are rewound to there. In the end they write what is left, unless
    the run is to be continued, and are closed, each of them, whatever fails.

    With `over_ranks` what is written are means over all ranks, of times the largest. Each rank must
    have this hook then; those other than 0 without writers.
    """

    priority = Priority.VERY_LOW  # after all that puts something into the storage

    def __init__(
        self, writers: Sequence[EventWriter], period: int | str = 20, *, over_ranks: bool = False
    ) -> None:
        for writer in writers:
            if not isinstance(writer, EventWriter):
                raise TypeError(f"a writer must be an EventWriter, got {type(writer).__name__}")
        self._writers = list(writers)
        self._over_ranks = over_ranks
        self._period = read_period(period, JointPeriod if over_ranks else Period)
        self._was_evaluated = False

    def before_train(self) -> None:
        is_joint = self._over_ranks and comm.get_world_size() > 1
        if is_joint:
            self.trainer.storage.start_joining_ranks()
        try:
            for writer in self._writers:
                writer.rewind(self.trainer.start_iter)
            # A run that is trained further has results of its end, which were cut off now: they
            # are written with its first step.
            has_results = self.trainer.storage.forget_written(self.trainer.start_iter)
            self._was_evaluated = comm.all_gather(has_results)[0] if is_joint else has_results
        except BaseException:  # then this hook was not started, and gets no after_train
            self._call_all("close")
            raise

    def after_eval(self, results: dict[str, Any]) -> None:
        self._was_evaluated = True

    def after_step(self) -> None:
        trainer = self.trainer
        is_last = trainer.iter == trainer.max_iter - 1
        if is_due(self._period, trainer) or is_last or self._was_evaluated:
            self._was_evaluated = False
            trainer.storage.join_ranks()
            self._call_all("write")
            trainer.storage.clear_images()
            trainer.storage.clear_histograms()

    def after_train(self) -> None:
        trainer = self.trainer
        try:
            # Where something has failed here, the other ranks may never come to this point.
            if not (trainer.failed or trainer.requeue or trainer._hook_list.has_failed):
                trainer.storage.join_ranks()
                trainer.storage.stop_joining_ranks()
        finally:
            # The run that goes on writes the rest, in lines that are as they were without a stop.
            self._call_all("write_media" if trainer.requeue else "write", "close")

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what waits to be written is in the storage's state, but for images and
        histograms, which are written now."""
        if storage := getattr(self.trainer, "storage", None):
            with storage:
                self._call_all("write_media")
        return {}

    def _call_all(self, *methods: str) -> None:
        first: BaseException | None = None
        for writer in self._writers:
            for method in methods:
                try:
                    getattr(writer, method)()
                except BaseException as error:  # Ctrl-C in a write leaves no file open
                    if first is not None:
                        attach_error(first, error)
                    first = first or error
        if first is not None:
            raise first
