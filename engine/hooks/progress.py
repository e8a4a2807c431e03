"""ProgressBar: how far the run is, on a terminal."""

import logging
import os
import sys
from typing import Any

from engine.events import printer
from engine.hooks.base import HookBase, Priority
from engine.parallel import comm
from engine.utils.logger import console_handlers
from engine.utils.periods import Period


class ProgressBar(HookBase):
    """Shows a bar with the time to the end and, every `period`, the losses and accuracies.

    Only on a terminal; there the lines of CommonMetricPrinter go to the log file alone.
    """

    priority = Priority.VERY_LOW  # after all that puts something into the storage

    def __init__(self, period: int | str = 20) -> None:
        self._period = Period(period)
        self._bar: Any = None

    def before_train(self) -> None:
        if not (_has_screen() and comm.is_main_process()):
            return
        from tqdm import tqdm

        for handler in console_handlers():
            handler.addFilter(_is_no_progress_line)
        self._bar = tqdm(
            total=self.trainer.max_iter,
            initial=self.trainer.start_iter,
            unit="it",
            dynamic_ncols=True,
            file=sys.stdout,
        )

    def after_step(self) -> None:
        if self._bar is None:
            return
        self._bar.update()
        if self._period.is_due(self.trainer):
            values = self.trainer.storage.latest_with_smoothing_hint()
            shown = {
                name.rsplit("/", 1)[-1]: f"{value:.4g}"
                for name, (value, _) in values.items()
                if "loss" in name or "acc" in name
            }
            self._bar.set_postfix(shown)

    def after_train(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            for handler in console_handlers():
                handler.removeFilter(_is_no_progress_line)


def _has_screen() -> bool:
    """Whether stdout is a terminal with a size: on others, as containers may have, no bar shows."""
    try:
        return sys.stdout.isatty() and all(os.get_terminal_size(sys.stdout.fileno()))
    except OSError:
        return False


def _is_no_progress_line(record: logging.LogRecord) -> bool:
    return record.name != printer.__name__
