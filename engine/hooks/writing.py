"""PeriodicWriter: has the writers write."""

from collections.abc import Sequence
from typing import Any

from engine.events import EventWriter
from engine.hooks.base import HookBase, Priority
from engine.hooks.hook_list import attach_error
from engine.hooks.joint_period import JointPeriod
from engine.parallel import comm
from engine.utils.periods import Period, is_due, read_period
from engine.utils.unique_names import unique_names


class PeriodicWriter(HookBase):
    """Calls `write()` of its writers every `period`, at the last step, and after an evaluation.

    Where a run begins, its writers are rewound to there. In the end they write what is left, unless
    the run is to be continued, and are closed, each of them, whatever fails.

    With `over_ranks` what is written are means over all ranks, of times the largest. Each rank must
    have this hook then; the writers of rank 0 alone write.
    """

    priority = Priority.VERY_LOW  # after all that puts something into the storage
    is_joint = False

    def __init__(
        self, writers: Sequence[EventWriter], period: int | str = 20, *, over_ranks: bool = False
    ) -> None:
        for writer in writers:
            if not isinstance(writer, EventWriter):
                raise TypeError(f"a writer must be an EventWriter, got {type(writer).__name__}")
        self._writers = list(writers) if comm.is_main_process() or not over_ranks else []
        self.is_joint = over_ranks
        self._period = read_period(period, JointPeriod if over_ranks else Period)
        self._was_evaluated = False
        self._states: dict[str, dict[str, Any]] = {}  # of the writers, of the run that goes on
        self._is_over = False

    def before_train(self) -> None:
        is_joint = self.is_joint and comm.get_world_size() > 1
        storage, start_iter = self.trainer.storage, self.trainer.start_iter
        self._is_over = False
        if is_joint:
            sizes = [getattr(writer, "_window_size", 0) or 0 for writer in self._writers]
            storage.start_joining_ranks(max(comm.all_gather(max(sizes, default=0))))
        storage.expect_media_reader(self)  # for writers that look at all that waits
        for writer in self._writers:
            storage.expect_reader(writer)
            if type(writer).write_media is not EventWriter.write_media:
                storage.expect_media_reader(writer)
        try:
            rewound = self._take_back()
            # A run that is trained further has results of its end. Where they were cut off now they
            # are written with its first step.
            has_results = storage.forget_written(start_iter, rewound) and bool(rewound)
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
            if self.is_joint:
                trainer.storage.join_ranks()
            self._call_all("write")
            trainer.storage.drop_read_media(self)

    def after_train(self) -> None:
        trainer = self.trainer
        try:
            # Where something has failed here, the other ranks may never come to this point.
            if self.is_joint and not (trainer.failed or trainer.has_failed_hook):
                if not trainer.requeue:
                    trainer.storage.join_ranks()
                trainer.storage.stop_joining_ranks()
        finally:
            # The run that goes on writes the rest, in lines that are as they were without a stop.
            self._call_all("write_media" if trainer.requeue else "write", "close")
            self._is_over = not trainer.requeue

    def state_dict(self) -> dict[str, Any]:
        """Where the outputs stand, unless the run is over: one that is trained further has its last
        results in the line of its first step. Scalars that wait are in the storage's state; images
        and histograms are not, and are written now."""
        if storage := getattr(self.trainer, "storage", None):
            with storage:
                self._call_all("write_media")
        return {
            name: state
            for name, one in self._named()
            if not (self._is_over and one.goes_back) and (state := one.state_dict())
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._states = state_dict

    def _take_back(self) -> list[EventWriter]:
        """Take back what was written after the checkpoint. Returns writers that had to be rewound,
        as it is not known where their outputs stood."""
        start_iter, states, self._states = self.trainer.start_iter, self._states, {}
        rewound = []
        for name, writer in self._named():
            if not (start_iter and name in states and writer.restore(states[name], start_iter)):
                writer.rewind(start_iter)
                rewound.append(writer)
        return rewound

    def _named(self) -> list[tuple[str, EventWriter]]:
        return list(zip(unique_names(self._writers), self._writers, strict=True))

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
