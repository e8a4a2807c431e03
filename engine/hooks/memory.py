"""TorchMemoryStats: what the accelerator's memory is used for."""

import logging

import torch

from engine.hooks.base import HookBase
from engine.utils.periods import is_due, read_period

logger = logging.getLogger(__name__)


class TorchMemoryStats(HookBase):
    """Logs the reserved and allocated memory of the CUDA device, `max_runs` times every `period`.

    The peak is counted anew after each time; the last time adds torch's full summary. Without a
    CUDA device it does nothing.
    """

    def __init__(self, period: int | str = 20, max_runs: int = 10) -> None:
        self._period = read_period(period)
        self._max_runs = max_runs
        self._runs = 0

    def after_step(self) -> None:
        if self._runs >= self._max_runs or not torch.cuda.is_available():
            return
        is_last = self.trainer.iter == self.trainer.max_iter - 1
        if is_due(self._period, self.trainer) or is_last:
            self._runs += 1
            self._log()

    def _log(self) -> None:
        figures = {
            "max reserved": torch.cuda.max_memory_reserved(),
            "reserved": torch.cuda.memory_reserved(),
            "max allocated": torch.cuda.max_memory_allocated(),
            "allocated": torch.cuda.memory_allocated(),
        }
        listed = ", ".join(f"{name} {figure / 2**20:.0f} MB" for name, figure in figures.items())
        logger.info("Memory at iteration %d: %s", self.trainer.iter, listed)
        if self._runs == self._max_runs:
            logger.info("\n%s", torch.cuda.memory_summary())
        torch.cuda.reset_peak_memory_stats()
