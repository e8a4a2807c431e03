"""SlowRanks: names the rank that the others wait for."""

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

logger = logging.getLogger(__name__)

RATIO = 1.5  # to the median of all ranks
SHORTEST_WINDOW = 10  # iterations
SECONDS = 0.005  # less is nothing that anyone waits for


class SlowRanks:
    """Warns of a rank whose time, over `window` iterations, is far above that of the others.

    The longest time of each is left out: it may be that of a save, or of what is only done once. Of
    many such windows it is the 1st, 2nd, 4th, 8th, … that is told.
    """

    def __init__(self, window: int) -> None:
        self.hosts: Sequence[str] = ()  # of the ranks
        self._window = max(window, SHORTEST_WINDOW)
        # By name, the seconds of each rank, the longest of them, and of how many iterations.
        self._sums: dict[str, tuple[np.ndarray, np.ndarray, int]] = {}
        self._slow: Counter[tuple[str, int]] = Counter()  # windows, by name and rank

    @np.errstate(invalid="ignore")  # times of the user's own may be NaN and infinite
    def note(self, name: str, seconds: np.ndarray) -> None:
        """Take the times of more iterations: a row for each rank, a column for each iteration."""
        sums, longest = np.add.reduce(seconds, 1), np.maximum.reduce(seconds, 1)
        seen = seconds.shape[1]
        if name in self._sums:
            earlier, longest_earlier, count = self._sums.pop(name)
            sums, longest = sums + earlier, np.maximum(longest, longest_earlier)
            seen += count
        if seen < self._window:
            self._sums[name] = sums, longest, seen
        elif max(sums.tolist()) > seen * SECONDS:
            self._judge(name, (sums - longest) / (seen - 1))

    def _judge(self, name: str, means: np.ndarray) -> None:
        # The slowest alone: others may be so as they wait for it.
        mean, rank = max(zip(means.tolist(), range(len(means)), strict=True))
        usual = sorted(means.tolist())[(len(means) - 1) // 2]  # of two the smaller
        if mean > RATIO * usual and mean > usual + SECONDS:
            windows = self._slow[name, rank] = self._slow[name, rank] + 1
            if windows & (windows - 1) == 0:
                logger.warning(
                    "Rank %d (on %s) is slow: its %s is %.1f ms on average, that of the median "
                    "rank %.1f ms; all ranks wait for it",
                    rank,
                    self.hosts[rank],
                    name,
                    mean * 1e3,
                    usual * 1e3,
                )
