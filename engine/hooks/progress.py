"""ProgressBar: how far the run is, on a terminal."""

import logging
import os
import sys
from collections import Counter
from typing import Any

from engine.events import printer
from engine.hooks.base import HookBase, Priority
from engine.parallel import comm
from engine.utils.logger import console_handlers
from engine.utils.periods import is_due, read_period


class ProgressBar(HookBase):
    """Shows a bar with the time to the end and, every `period`, the losses and accuracies that
    the line has room for.

    Only on a terminal; there the lines of CommonMetricPrinter go to the log file alone.
    """

    priority = Priority.VERY_LOW  # after all that puts something into the storage

    def __init__(self, period: int | str = 20) -> None:
        self._period = read_period(period)
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
        if is_due(self._period, self.trainer):
            values = self.trainer.storage.latest_with_smoothing_hint()
            shown = [name for name in values if "loss" in name or "acc" in name]
            shown.sort(key=lambda name: (name != "total_loss", "loss" not in name))
            labels = _short_names(shown)
            entries = [f"{labels[name]}={values[name][0]:.4g}" for name in shown]
            self._bar.set_postfix_str(_fitting(entries, self._bar))

    def after_train(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            for handler in console_handlers():
                handler.removeFilter(_is_no_progress_line)


def _has_screen() -> bool:
    """Whether stdout is a terminal with a size: on others, as containers may have, no bar shows."""
    try:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed (`>&-`)
        return is_terminal and all(os.get_terminal_size(sys.stdout.fileno()))
    except OSError:
        return False


def _fitting(entries: list[str], bar: Any) -> str:
    """Those that leave a bar of ten characters or more in its line."""
    state, kept = bar.format_dict, ""
    for entry in entries:
        longer = f"{kept}, {entry}" if kept else entry
        line = bar.format_meter(**{**state, "postfix": longer, "ncols": None})  # with a bar of ten
        if not state["ncols"] or len(line) <= state["ncols"]:
            kept = longer
    return kept


def _short_names(names: list[str]) -> dict[str, str]:
    """Each name without what is before its last "/", unless another one would be the same."""
    short = {name: name.rsplit("/", 1)[-1] for name in names}
    counts = Counter(short.values())
    return {name: one if counts[one] == 1 else name for name, one in short.items()}


def _is_no_progress_line(record: logging.LogRecord) -> bool:
    return record.name != printer.__name__
